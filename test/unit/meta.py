"""Checks META.json against the rules of the PGXN Meta Spec 1.0.0 (https://pgxn.org/spec/) for the fields that it has. Also checks that
its names and versions are those of the control file, the SQL script, the change log, the Debian package and the client libraries.

Prints one line per check and "N passed, N failed"; fails if anything failed. An argument names another META.json.
"""
import json
import os
import re
import sys

TOP = os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..')
SEMVER = re.compile(r'(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?')
TERM = re.compile(r'[^\s/\\\x00-\x1f\x7f]{2,}')
LICENSES = {'agpl_3', 'apache_1_1', 'apache_2_0', 'artistic_1', 'artistic_2', 'bsd', 'freebsd', 'gfdl_1_2', 'gfdl_1_3',
            'gpl_1', 'gpl_2', 'gpl_3', 'lgpl_2_1', 'lgpl_3_0', 'mit', 'mozilla_1_0', 'mozilla_1_1', 'openssl', 'perl_5',
            'postgresql', 'qpl_1_0', 'ssleay', 'sun', 'zlib', 'open_source', 'restricted', 'unrestricted', 'unknown'}
REQUIRED = {'name', 'version', 'abstract', 'maintainer', 'license', 'provides', 'meta-spec'}
OPTIONAL = {'description', 'generated_by', 'tags', 'no_index', 'prereqs', 'release_status', 'resources'}
PHASES = {'configure', 'build', 'test', 'runtime', 'develop'}
RELATIONS = {'requires', 'recommends', 'suggests', 'conflicts'}

counts = {True: 0, False: 0}


def check(good, text):
    good = bool(good)
    counts[good] += 1
    print(('ok - ' if good else 'not ok - ') + text)


def is_text(value):
    return isinstance(value, str) and value.strip() != ''


def is_version(value):
    return isinstance(value, str) and SEMVER.fullmatch(value)


def is_range(value):
    """Whether this is a version, 0 for any version, or comparisons separated by commas."""
    if value == 0:
        return True
    return isinstance(value, str) and all(is_version(re.sub(r'^\s*(<=|>=|==|!=|<|>)?\s*', '', part)) or part.strip() == '0'
                                          for part in value.split(','))


def read(name):
    with open(os.path.join(TOP, name), encoding='utf-8') as f:
        return f.read()


def check_spec(meta):
    unknown = {k for k in meta.keys() - REQUIRED - OPTIONAL if not re.match('[xX]_', k)}
    check(not unknown, f"keys of the specification: unknown {sorted(unknown) or 'none'}")
    check(is_text(meta['name']) and TERM.fullmatch(meta['name']), 'name is a term')
    check(is_version(meta['version']), 'version is a semantic version')
    check(all(is_text(meta[k]) for k in ('abstract', 'description', 'generated_by') if k in meta), 'texts are not empty')
    people = meta['maintainer'] if isinstance(meta['maintainer'], list) else [meta['maintainer']]
    check(people and all(is_text(p) for p in people), 'maintainers have names')
    names = meta['license'] if isinstance(meta['license'], list) else [meta['license']]
    check(names and set(names) <= LICENSES, 'the licence is one of the list')
    check(meta.get('release_status', 'stable') in ('stable', 'testing', 'unstable'), 'release status')
    check(is_version(meta['meta-spec'].get('version')) and
          meta['meta-spec'].keys() <= {'version', 'url'}, 'meta-spec has a version')
    tags = meta.get('tags', [])
    check(isinstance(tags, list) and all(is_text(t) and len(t) <= 255 and not re.search(r'[/\\\x00-\x1f\x7f]', t)
                                         for t in tags), 'tags')
    for name, item in meta['provides'].items():
        check(TERM.fullmatch(name) and is_version(item.get('version')) and is_text(item.get('file')) and
              item.keys() <= {'file', 'version', 'abstract', 'docfile'}, f'provides {name}: file and version')
    for phase, relations in meta.get('prereqs', {}).items():
        check(phase in PHASES and relations.keys() <= RELATIONS and
              all(TERM.fullmatch(n) and is_range(v) for r in relations.values() for n, v in r.items()), f'prereqs of {phase}')


def check_agreement(meta):
    version = re.search(r"^default_version = '(.*)'", read('pgcache_fence.control'), re.M).group(1)
    item = meta['provides'].get('pgcache_fence', {})
    check(item.get('version') == version + '.0', f'provides the default version of the control file, {version}')
    check(meta['version'] == item.get('version'), 'the distribution has the version of the extension')
    for key in ('file', 'docfile'):
        check(os.path.exists(os.path.join(TOP, item.get(key, '?'))), f'{key} exists: {item.get(key)}')
    check(re.search(rf'^## {re.escape(version)}\b', read('CHANGELOG.md'), re.M), f'the changes of {version} are told')
    debian = re.match(r'pgcache-fence \(([^)]*)\)', read('debian/changelog')).group(1)
    check(re.match(rf'{re.escape(version)}(\.\d+)?(-|$)', debian), f'the Debian package is of {version}: {debian}')
    check(f'FENCE_MODULE_MAGIC("pgcache_fence", "{version}")' in read('src/init.c'), f'the library is of {version}')
    scripts = {name for name in os.listdir(TOP) if re.fullmatch(r'pgcache_fence--.*\.sql', name)}
    check(set(re.search(r'^DATA = (.*)', read('Makefile'), re.M).group(1).split()) == scripts, 'all SQL scripts are installed')
    check(any(name.endswith(f'--{version}.sql') for name in scripts), f'a script makes {version}')
    clients = {re.search(r'^version = "(.*)"', read('clients/python/pyproject.toml'), re.M).group(1), json.loads(read('clients/node/package.json'))['version']}
    check(clients == {meta['version']}, f'the client libraries have the version of the distribution: {clients}')
    oldest = re.search(r'^(\d+)\+', read('debian/pgversions'), re.M).group(1)
    needed = meta['prereqs']['runtime']['requires']['PostgreSQL']
    check(needed == f'{oldest}.0.0', f'the oldest PostgreSQL is that of the Debian package, {oldest}: {needed}')


def main():
    with open(sys.argv[1] if len(sys.argv) > 1 else os.path.join(TOP, 'META.json'), encoding='utf-8') as f:
        meta = json.load(f)
    check(REQUIRED <= meta.keys(), f"required keys: missing {sorted(REQUIRED - meta.keys()) or 'none'}")
    if REQUIRED <= meta.keys():
        check_spec(meta)
        check_agreement(meta)
    print(f'{counts[True]} passed, {counts[False]} failed')
    sys.exit(1 if counts[False] else 0)


main()
