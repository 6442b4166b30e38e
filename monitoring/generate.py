#!/usr/bin/env python3
"""Makes queries.yaml and dashboard.json from the list of metrics in src/base/metrics.h.

    python3 monitoring/generate.py           writes both
    python3 monitoring/generate.py --check   says what differs, and what alerts.yml names that does not exist
    python3 monitoring/generate.py --list    every series, as fence.metrics can have it: name and labels, those that depend on the domain left open
"""
import itertools
import json
import os
import re
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
HEADER = os.path.join(HERE, '..', 'src', 'base', 'metrics.h')
OPEN = ('domain', 'cache_type')    # labels whose values the header does not list
MADE = 'Made by monitoring/generate.py from src/base/metrics.h; do not edit.'


class Family:
    def __init__(self, name, kind, labels, help_text):
        self.name, self.kind, self.help = name, kind, help_text
        self.labels = [label for label in labels.split(',') if label]
        self.listed = [label for label in self.labels if label not in OPEN]
        self.series = []            # tuples of the values of the listed labels


def read_header():
    """The families in the order of the list, and the histogram: (name, help, upper bounds in seconds)."""
    with open(HEADER, encoding='utf-8') as f:
        text = f.read()
    families = {}
    for key, name, kind, labels, help_text in re.findall(
            r'^\tF\((\w+), "([^"]*)", (\w+), "([^"]*)", "([^"]*)"\)', text, re.M):
        families[key] = Family(name, kind, labels, help_text)
    for key, one, two in re.findall(r'^\tS\(\w+, (\w+), ("[^"]*"|NULL), ("[^"]*"|NULL)\)', text, re.M):
        families[key].series.append(tuple(v.strip('"') for v in (one, two) if v != 'NULL'))

    def constant(name):
        return re.search(r'^#define METRIC_WINDOW_' + name + r' "?([^"\n]*)"?$', text, re.M).group(1)
    bounds = [int(b) / 1e6 for b in constant('BUCKETS').split(',')]
    for family in families.values():
        assert family.series and all(len(values) == len(family.listed) for values in family.series), family.name
    return list(families.values()), (constant('NAME'), constant('HELP'), bounds)


# ----------------------------------------------------------------------------------------------------------------------
# Queries for prometheus-postgres-exporter
# ----------------------------------------------------------------------------------------------------------------------

def yaml_metric(column, usage, description):
    return [f'    - {column}:', f'        usage: "{usage}"', f'        description: {json.dumps(description)}']


def split_name(name, used):
    """The exporter joins an entry's name and its column's with an underscore: two parts of the name. No entry is used twice."""
    words = name.split('_')
    for at in range(len(words) - 1, 0, -1):
        entry, column = '_'.join(words[:at]), '_'.join(words[at:])
        if entry not in used:
            used.add(entry)
            return entry, column
    raise ValueError(f'no entry is left for {name}')


# Exporters have many rights, and others may have made objects in their search_path. So everything has its schema.
def value_of(label):
    return f"labels OPERATOR(pg_catalog.->>) '{label}'"


def is_named(name):
    return f"FILTER (WHERE name OPERATOR(pg_catalog.=) '{name}')"


def query_of(family, used):
    entry, column = split_name(family.name, used)
    fields = ['pg_catalog.current_database() AS datname'] + [f"{value_of(label)} AS {label}" for label in family.labels]
    lines = [f'{entry}:',
             f"  query: \"SELECT {', '.join(fields)}, value AS {column} FROM fence.metrics WHERE name OPERATOR(pg_catalog.=) '{family.name}'\"",
             '  metrics:']
    for label in ['datname'] + family.labels:
        lines += yaml_metric(label, 'LABEL', label)
    return lines + yaml_metric(column, 'COUNTER' if family.kind == 'COUNTER' else 'GAUGE', family.help)


def query_of_window(window, used):
    name, help_text, _ = window
    entry, column = split_name(name, used)
    le = value_of('le')
    bucket = f"FILTER (WHERE name OPERATOR(pg_catalog.=) '{name}_bucket' AND {le} OPERATOR(pg_catalog.<>) '+Inf')"
    number = f'({le})::pg_catalog.float8'
    fields = ['pg_catalog.current_database() AS datname',
              f'pg_catalog.array_agg({number} ORDER BY {number}) {bucket} AS {column}',
              f'pg_catalog.array_agg(value::bigint ORDER BY {number}) {bucket} AS {column}_bucket',
              f"pg_catalog.sum(value) {is_named(name + '_sum')} AS {column}_sum",
              f"pg_catalog.sum(value) {is_named(name + '_count')}::bigint AS {column}_count"]
    lines = [f'{entry}:', f"  query: \"SELECT {', '.join(fields)} FROM fence.metrics\"", '  metrics:']
    lines += yaml_metric('datname', 'LABEL', 'datname')
    return lines + yaml_metric(column, 'HISTOGRAM', help_text)


def queries(families, window):
    lines = [f'# {MADE}', '# For prometheus-postgres-exporter: --extend.query-path. A label "datname" tells databases apart.']
    used = set()
    for family in families:
        lines += query_of(family, used)
    return '\n'.join(lines + query_of_window(window, used)) + '\n'


# ----------------------------------------------------------------------------------------------------------------------
# Dashboard for Grafana
# ----------------------------------------------------------------------------------------------------------------------

# What the client libraries export. Only readers know their hits by GET and MGET.
READERS = 'pgcache_fence_client_reads_total'
READERS_HELP = 'Strong reads by where the value came from, as the client libraries count them'

SELECTED = {'domain': 'datname=~"$datname", domain=~"$domain"'}


def targets_of(family):
    where = SELECTED['domain'] if 'domain' in family.labels else 'datname=~"$datname"'
    by = ', '.join(family.labels)
    if family.kind == 'COUNTER':
        inner = f'rate({family.name}{{{where}}}[$__rate_interval])'
        return [(f'sum by ({by}) ({inner})' if by else f'max({inner})',
                 ' '.join('{{' + label + '}}' for label in family.labels) or family.name)]
    return [(f'max by ({by}) ({family.name}{{{where}}})' if by else f'max({family.name}{{{where}}})',
             ' '.join('{{' + label + '}}' for label in family.labels) or family.name)]


def targets_of_window(window):
    inner = f'sum by (le) (rate({window[0]}_bucket{{datname=~"$datname"}}[$__rate_interval]))'
    return [(f'histogram_quantile({q}, {inner})', f'p{q * 100:g}') for q in (0.5, 0.95, 0.99)]


def panel(number, title, unit, targets):
    return {
        'id': number + 1, 'type': 'timeseries', 'title': title, 'datasource': '$datasource',
        'gridPos': {'x': 12 * (number % 2), 'y': 8 * (number // 2), 'w': 12, 'h': 8},
        'fieldConfig': {'defaults': {'unit': unit, 'min': 0}, 'overrides': []},
        'targets': [{'refId': chr(ord('A') + i), 'expr': expr, 'legendFormat': legend}
                    for i, (expr, legend) in enumerate(targets)],
    }


def variable(name, query, label):
    return {'name': name, 'label': label, 'type': 'query', 'datasource': '$datasource', 'query': query,
            'refresh': 2, 'multi': True, 'includeAll': True, 'current': {'text': 'All', 'value': '$__all'}}


def dashboard(families, window):
    units = {'COUNTER': 'ops', 'GAUGE': 'short', 'SECONDS': 's'}
    panels = [panel(i, f.help, units[f.kind], targets_of(f)) for i, f in enumerate(families)]
    panels.append(panel(len(panels), window[1], 's', targets_of_window(window)))
    panels.append(panel(len(panels), READERS_HELP, 'ops', [(f'sum by (domain, source) (rate({READERS}{{domain=~"$domain"}}[$__rate_interval]))',
                                                            '{{domain}} {{source}}')]))
    per_domain = next(f.name for f in families if f.labels == ['domain'])
    return json.dumps({
        'title': 'pgcache_fence', 'uid': 'pgcache-fence', 'description': MADE, 'schemaVersion': 36, 'version': 1,
        'tags': ['postgresql', 'redis'], 'time': {'from': 'now-3h', 'to': 'now'}, 'refresh': '30s',
        'templating': {'list': [
            {'name': 'datasource', 'label': 'Data source', 'type': 'datasource', 'query': 'prometheus'},
            variable('datname', f'label_values({per_domain}, datname)', 'Database'),
            variable('domain', f'label_values({per_domain}{{datname=~"$datname"}}, domain)', 'Domain')]},
        'panels': panels}, indent=1) + '\n'


# ----------------------------------------------------------------------------------------------------------------------

def names(families, window):
    """Every name that a query may use, with the values that its labels can have (None: any)."""
    known = {}
    for family in families:
        known[family.name] = dict.fromkeys(['datname'] + [label for label in family.labels if label in OPEN])
        for i, label in enumerate(family.listed):
            known[family.name][label] = {values[i] for values in family.series}
    for suffix in ('_bucket', '_sum', '_count'):
        known[window[0] + suffix] = {'le': None, 'datname': None}
    return known


def unknown_in(path, known):
    """What a file of rules names that does not exist: metrics, labels, values of labels."""
    with open(path, encoding='utf-8') as f:
        text = f.read()
    for name, selector in re.findall(r'\b(cache_(?:fence|db|stale)_\w+)(?:\{([^}]*)\})?', text):
        if name not in known:
            yield f'{os.path.basename(path)}: no metric {name}'
            continue
        for label, operator, values in re.findall(r'(\w+)\s*(=~|!~|!=|=)\s*[\'"]([^\'"]*)[\'"]', selector):
            if label not in known[name]:
                yield f'{os.path.basename(path)}: {name} has no label {label}'
            elif known[name][label] is not None:
                for value in values.split('|') if '~' in operator else [values]:
                    if value not in known[name][label]:
                        yield f'{os.path.basename(path)}: {name} has no {label} "{value}"'


def series(families, window):
    for family in families:
        for values in family.series:
            yield family.name, dict({label: '*' for label in family.labels if label in OPEN}, **dict(zip(family.listed, values)))
    for bound in itertools.chain((f'{b:g}' for b in window[2]), ['+Inf']):
        yield window[0] + '_bucket', {'le': bound}
    yield window[0] + '_sum', {}
    yield window[0] + '_count', {}


def main():
    families, window = read_header()
    made = {'queries.yaml': queries(families, window), 'dashboard.json': dashboard(families, window)}
    if sys.argv[1:] == ['--list']:
        for name, labels in series(families, window):
            print(name, json.dumps(labels, sort_keys=True))
        return 0
    if sys.argv[1:] == ['--check']:
        wrong = []
        for name, text in made.items():
            with open(os.path.join(HERE, name), encoding='utf-8') as f:
                if f.read() != text:
                    wrong.append(f'{name} is not what generate.py makes: run it')
        for name in ('alerts.yml', 'alerts_test.yml'):
            wrong += unknown_in(os.path.join(HERE, name), names(families, window))
        print('\n'.join(wrong), end='\n' if wrong else '')
        return 1 if wrong else 0
    for name, text in made.items():
        with open(os.path.join(HERE, name), 'w', encoding='utf-8') as f:
            f.write(text)
    return 0


if __name__ == '__main__':
    sys.exit(main())
