"""Checks that the SQL in the extension's scripts, in its C code, in the libraries (clients/) and in monitoring/queries.yaml names the
schema of every function, operator, cast and relation, also where SQL hides an operator (IN, CASE x WHEN, LIKE ...). Superusers and
applications run this SQL in databases where other users may have made objects of the same names. In the pages it looks only for
functions that take a row of any type, because another one, of that very type, always fits better. Also checks that scripts do not
replace existing objects.

These need no schema, because PostgreSQL does not look up their names: constructs of the grammar (EXTRACT, coalesce, greatest, bigint,
interval '1 s'), the equality behind ORDER BY, GROUP BY, DISTINCT and greatest (from the type's operator class), and the types of
columns and arguments in scripts, which the server runs with search_path "pg_catalog, pg_temp".

Prints the faults and "N passed, N failed"; fails if anything failed. --list prints the SQL found in src/.
"""
import ast
import glob
import importlib
import json
import os
import re
import subprocess
import sys
import types

TOP = os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..')
PATH = 'pg_catalog, pg_temp'
C_STRING = r'"(?:[^"\\]|\\.)*"'
# Functions that take SQL: those of SPI, and our own that pass it on.
RUNNERS = r'SPI_execute|SPI_execute_with_args|SPI_prepare|execute|put_rows|look_up|run'
PASSED_ON = {'sql', 'sql.data', 'query.data', 'format'}
TOKEN = re.compile(r'''"[^"]+"(?:\.(?:\w+|"[^"]+"))*|[A-Za-z_][\w$]*(?:\.(?:[A-Za-z_]\w*|"[^"]+"|\*))*|\$\d+|[0-9]+(?:\.[0-9]+)?
    |OPERATOR|'|::|:=|=>|[-+*/<>=~!@\#%^&|`?]+|[(),;:\[\].]''', re.X)
# words that are no functions although a parenthesis may follow them
WORDS = set('''any all array exists values as check key unique coalesce greatest least extract operator and or not when then else on in
    over select where from conflict materialized primary lateral filter by returns table limit distinct generated identity join'''.split())
CAST_TO = {'bigint', 'int', 'integer', 'smallint', 'numeric', 'boolean', 'double', 'interval', 'real'}
HIDDEN = [(r'\bin \(', 'IN'), (r'\bbetween\b', 'BETWEEN'), (r'\bi?like\b', 'LIKE'), (r'\bsimilar to\b', 'SIMILAR TO'),
          (r'\bcase (?!when\b)', 'CASE x WHEN'), (r'\bnullif\b', 'NULLIF'), (r'\bis (not )?distinct\b', 'IS DISTINCT FROM'),
          (r'\bjoin [\w.]+ (?:as )?(?:\w+ )?using \(', 'JOIN ... USING'), (r'\bnatural\b', 'NATURAL JOIN'), (r'\bcast \(', 'CAST'),
          (r'\boverlaps\b', 'OVERLAPS'), (r'\b(?:text|name|oid|reg\w+|jsonb?|uuid|timestamptz|date|xid8?) \x01', 'a type before a literal')]
TAKEN_OVER = [(r'\bor replace\b', 'CREATE OR REPLACE'), (r'\bif not exists\b', 'IF NOT EXISTS')]

counts = {True: 0, False: 0}


def check(good, text):
    counts[bool(good)] += 1
    if not good:
        print('not ok - ' + text)


def plain(sql):
    """The SQL without comments, with \\x01 for each literal, and with one of our names for each value that a format fills in."""
    sql = re.sub(r'--[^\n]*|/\*.*?\*/|^\\[^\n]*', ' ', sql, flags=re.S | re.M)
    sql = re.sub(r"\braise\b.*?;", ';', sql.replace('$$', ' '), flags=re.S | re.I)
    sql = re.sub(r"'(?:[^']|'')*'", '\x01', sql)
    return re.sub(r'%(?:lld|[a-zA-Z])', 'fence.filled', sql)


def faults(sql, script=False):
    """The unqualified names in one statement."""
    text = plain(sql)
    words = re.sub(r'([(),;])', r' \1 ', text.lower())
    words = ' '.join(words.split())
    for pattern, name in HIDDEN + (TAKEN_OVER if script else []):
        if re.search(pattern, words):
            yield f'{name}'
    text = re.sub(r'\bOPERATOR\(pg_catalog\.[^\s)]+\)', ' operator ', text)
    tokens = TOKEN.findall(text)
    lower = [t.lower() for t in tokens]
    ctes = {lower[i] for i, t in enumerate(lower[:-2]) if lower[i + 1] == 'as' and lower[i + 2] in ('(', 'materialized')}
    assigned = False                    # whether this is in the list of UPDATE ... SET
    for i, t in enumerate(lower):
        before = lower[i - 1] if i else ''
        after = lower[i + 1] if i + 1 < len(lower) else ''
        if t == 'set':
            assigned = True
        elif t in ('where', 'returning', 'from', ';', 'as', 'begin'):
            assigned = False
        if t == '::':
            if after not in CAST_TO and not re.match(r'(pg_catalog|fence)\.', after):
                yield f'cast to {after}'
        elif re.fullmatch(r'[-+*/<>=~!@#%^&|`?]+', t):
            if t == '*' and before in ('select', '(', ','):
                continue
            if t == '=' and assigned and re.match(r'[\w"]', before):
                continue
            yield f'operator {t}'
        elif after == '(' and re.match(r'[a-z_"]', t) and t not in WORDS and '.' not in t and before != 'as' and t not in ctes:
            yield f'function {t}'
        elif '.' in t and after == '(' and not re.match(r'(pg_catalog|fence)\.', t):
            yield f'function {t}'
        if t in ('from', 'join', 'into', 'update', 'using', 'table') and not (t == 'update' and before in ('do', 'for', 'or')) and \
                not (t == 'from' and 'extract' in lower[max(0, i - 3):i]):
            yield from relations(lower, i + 1, t, ctes)


def relations(tokens, i, keyword, ctes):
    """The relations in the list at i that are neither qualified nor made by the statement itself."""
    depth = 0
    start = True
    while i < len(tokens):
        t = tokens[i]
        depth += (t == '(') - (t == ')')
        if depth < 0 or t in ('where', 'group', 'order', 'set', 'on', 'values', 'select', 'join', 'left', 'having', 'returning', ';', 'limit', 'for', 'from'):
            return
        if start and depth == 0 and t not in ('lateral', 'only', 'rows'):
            if re.match(r'[a-z_"]', t) and '.' not in t and t not in ctes and t not in ('public',):
                yield f'relation {t}'
            start = False
        elif depth == 0 and t == ',':
            start = True
        if keyword in ('into', 'update', 'table') and depth == 0:
            return
        i += 1


def statements_of(script):
    """(line number, statement) of each statement. A body BEGIN ... END belongs to its statement."""
    position = 0
    for match in re.finditer(r"(?:'(?:[^']|'')*'|--[^\n]*|/\*.*?\*/|\$\$.*?\$\$|BEGIN ATOMIC.*?\nEND|[^;'$-]|-|\$)+;", script, re.S):
        yield script.count('\n', 0, position) + 1, match.group()
        position = match.end()


def arguments_at(code, start):
    """The text between the parenthesis before start and the closing one."""
    depth = 1
    for piece in re.compile(rf'{C_STRING}|[()]').finditer(code, start):
        depth += (piece.group() == '(') - (piece.group() == ')')
        if depth == 0:
            return code[start:piece.start()]
    return code[start:]


def texts_of(source):
    """(line, SQL) of each call that runs SQL. SQL is empty if the function passes on its own argument, None if there is none."""
    macros = dict(re.findall(rf'^#define (\w+)\s+({C_STRING})$', source, re.M))
    macros.update(('CppAsString2(%s)' % name, '"1"') for name in re.findall(r'CppAsString2\((\w+)\)', source))
    code = re.sub(r'/\*.*?\*/', lambda m: re.sub(r'[^\n]', ' ', m.group()), source, flags=re.S)
    for name in sorted(macros, key=len, reverse=True):
        code = re.sub(rf'(?<!#define ){re.escape(name)}(?!\w)', lambda m: macros[name], code)
    for call in re.finditer(rf'\b(?:{RUNNERS})\(|\bappendStringInfo\(&query,', code):
        arguments = arguments_at(code, call.end())
        if re.search(r'\bconst char \*', arguments):
            continue                    # this is the definition or a declaration of the function
        runs = [re.sub(r'"\s*"', '', run)[1:-1] for run in re.findall(rf'{C_STRING}(?:\s*{C_STRING})*', arguments)]
        sql = [re.sub(r'\\(.)', r'\1', run) for run in runs if re.match(r'\s*(SELECT|INSERT|UPDATE|DELETE|WITH|CREATE|ALTER|DROP)\b', run)]
        if not sql and call.group().startswith('append'):
            continue
        passed = any(re.search(rf'(?<![\w.]){re.escape(name)}\b', arguments) for name in PASSED_ON)
        yield code.count('\n', 0, call.start()) + 1, sql[0] if sql else '' if passed else None


def check_script(name, script):
    for line, statement in statements_of(script):
        wrong = sorted(set(faults(statement, script=True)))
        check(not wrong, f'{name}:{line}: {", ".join(wrong)}')
        head = ' '.join(plain(statement).split())
        made = re.match(r'CREATE (FUNCTION|TABLE|VIEW|TYPE|SEQUENCE|DOMAIN|AGGREGATE|OPERATOR|CAST|RULE) (\S+)', head)
        check(not made or made.group(2).startswith('fence.'), f'{name}:{line}: {made and made.group(2)} is made outside of schema fence')
        if 'SECURITY DEFINER' in head:
            check(f'SET search_path = {PATH}' in head, f'{name}:{line}: SECURITY DEFINER without SET search_path = {PATH}')
        check('LANGUAGE sql' not in head or 'BEGIN ATOMIC' in head, f'{name}:{line}: a body that is looked up when it is called: use BEGIN ATOMIC')
        check(not re.search(r'LANGUAGE (?!C\b|sql\b)\w+', head), f'{name}:{line}: a language whose bodies are looked up when they are called')


def check_source(name, source, listed):
    for line, sql in texts_of(source):
        if listed and sql:
            print(f'{name}:{line}: {sql}')
        check(sql is not None, f'{name}:{line}: not the text of a statement')
        wrong = sorted(set(faults(sql or '')))
        check(not wrong, f'{name}:{line}: {", ".join(wrong)}')
    for path in re.findall(r'"search_path", "([^"]*)"', source):
        check(path == PATH, f'{name}: search_path is "{path}": pg_temp is searched first unless it is named')


# ----------------------------------------------------------------------------------------------------------------------
# The libraries, monitoring, pages
# ----------------------------------------------------------------------------------------------------------------------

STATEMENT = re.compile(r'\s*(SELECT|INSERT|UPDATE|DELETE|WITH|CALL)\b')
FRAGMENT = re.compile(r'::\w|\bpg_\w+\(|\b(FROM|JOIN|WHERE|OPERATOR)\b')
ROW_FUNCTION = re.compile(r'(?<![.\w])(to_jsonb?|row_to_json|jsonb?_agg|jsonb?_build_\w+|jsonb?_object_agg|format_type|quote_ident|array_agg)\(')
# What load.js makes of places, and the constants of the other files, as JSON.
NODE_SQL = """
const { loadFor } = require('./load');
const column = { name: 'a', sql: '"a"', cast: 'pg_catalog.int8', equal: 'pg_catalog.=' };
const made = [];
const pg = { query: async ({ text }) => { made.push(text); return { rows: [] }; } };
(async () => {
  for (const scope of ['row', 'group']) for (const selected of [null, ['a', 'b']]) for (const version of ['version', null]) {
    for (const columns of [[column], [column, column]]) {
      const place = { domain: 'd', relation: 'fence.t', scope, selected, version, columns, loads: new Map() };
      await loadFor(place).run(place, [{ fence: 'x:{' + columns.map(() => '1').join() + '}' }], pg);
    }
  }
  console.log(JSON.stringify(made));
})();"""


def check_sql(name, sql):
    wrong = sorted(set(faults(sql.replace('%s', '$1').replace('%%', '%'))))
    check(not wrong, f'{name}: {", ".join(wrong)}')


def python_library():
    """(where, statement): what domains.py makes, and every other statement in a text of the library."""
    folder = os.path.join(TOP, 'clients', 'python', 'src')
    sys.dont_write_bytecode = True
    package = sys.modules['pgcache_fence'] = types.ModuleType('pgcache_fence')           # without __init__.py, which needs drivers
    package.__path__ = [os.path.join(folder, 'pgcache_fence')]
    domains = importlib.import_module('pgcache_fence.domains')
    key = [domains.Column('a', 'int8', -1, 'pg_catalog.int8', 'pg_catalog.=')]
    for scope in ('row', 'group'):
        for columns in (None, ['a', 'b']):
            for version in ('version', None):
                for n in (1, 2):
                    yield 'sql_of_rows', domains.sql_of_rows('d', scope, 'fence.t', key * n, version, columns)
    yield 'VET', 'SELECT ' + domains.VET
    for path in sorted(glob.glob(os.path.join(folder, '**', '*.py'), recursive=True)):
        with open(path, encoding='utf-8') as f:
            tree = ast.parse(f.read())
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and STATEMENT.match(node.value) and FRAGMENT.search(node.value):
                yield f'{os.path.basename(path)}:{node.lineno}', re.sub(r'(FROM|JOIN) %s', r'\1 fence.t', node.value)


def node_library():
    """(where, statement), likewise. What a template fills in is taken as qualified, because load.js is run."""
    folder = os.path.join(TOP, 'clients', 'node', 'lib')
    done = subprocess.run(['node', '-e', NODE_SQL], cwd=folder, stdout=subprocess.PIPE, check=False)
    for sql in json.loads(done.stdout or '[]'):
        yield 'load.js', sql
    check(done.returncode == 0, 'load.js cannot be run by node')
    for path in sorted(glob.glob(os.path.join(folder, '*.js')) + glob.glob(os.path.join(folder, '..', '*.js'))):
        with open(path, encoding='utf-8') as f:
            source = re.sub(r'^ *//.*$', '', f.read(), flags=re.M)
        for match in re.finditer(r"'((?:[^'\\\n]|\\.)*)'|`((?:[^`\\]|\\.)*)`", source):
            sql = match.group(1) or match.group(2) or ''
            if STATEMENT.match(sql) and FRAGMENT.search(sql) and '${' not in sql:
                yield f'{os.path.basename(path)}:{source.count(chr(10), 0, match.start()) + 1}', sql


def check_users():
    for library in (python_library, node_library):
        found = list(library())
        check(len(found) > 15, f'{library.__name__}: only {len(found)} statements are found')
        for where, sql in found:
            check_sql(where, sql)
    with open(os.path.join(TOP, 'monitoring', 'queries.yaml'), encoding='utf-8') as f:
        queries = [json.loads(line.split(': ', 1)[1]) for line in f if line.startswith('  query: ')]
    check(len(queries) > 10, f'queries.yaml: only {len(queries)} queries are found')
    for sql in queries:
        check_sql('queries.yaml', sql)
    pages = [os.path.join(TOP, 'README.md')] + [path for folder in ('doc', 'clients/*') for path in glob.glob(os.path.join(TOP, folder, '*.md'))]
    for path in sorted(pages + glob.glob(os.path.join(TOP, 'clients', '*', '*.d.ts'))):
        with open(path, encoding='utf-8') as f:
            wrong = [f'{number}: {line.strip()}' for number, line in enumerate(f, 1) if ROW_FUNCTION.search(line)]
        check(not wrong, f'{os.path.relpath(path, TOP)}: a function without its schema that takes any type:\n' + '\n'.join(wrong))


# Faulty statements, all of which this program must find.
BAD = ['SELECT a + b FROM fence.t', 'SELECT 1 FROM fence.t WHERE a = 1', "SELECT 1 FROM fence.t WHERE a IN ('b')", 'SELECT CASE a WHEN 1 THEN 2 END FROM fence.t',
       'SELECT max(a) FROM fence.t', 'SELECT trap.max(a) FROM fence.t', 'SELECT 1 FROM t', 'SELECT 1 FROM fence.t, u', 'SELECT 1 FROM fence.t JOIN u ON true',
       'SELECT 1 FROM fence.t JOIN fence.u USING (a)', 'SELECT a::text FROM fence.t', "SELECT regclass 'a'", 'SELECT CAST(a AS text) FROM fence.t',
       "SELECT 1 FROM fence.t WHERE a LIKE 'b'", 'SELECT 1 FROM fence.t WHERE a BETWEEN 1 AND 2', 'SELECT NULLIF(a, 1) FROM fence.t', "SELECT a->>'b' FROM fence.t",
       'SELECT 1 FROM fence.t WHERE a IS DISTINCT FROM 1', 'SELECT 1 FROM fence.t WHERE now() OPERATOR(pg_catalog.>) a', "SELECT a || 'b' FROM fence.t",
       'INSERT INTO t VALUES (1)', 'UPDATE t SET a = 1', 'DELETE FROM t', 'UPDATE fence.t SET a = 1 WHERE b = 2', 'SELECT 1 FROM fence.t NATURAL JOIN fence.u',
       'SELECT a OPERATOR(trap.+) 1 FROM fence.t', 'SELECT 1 FROM ROWS FROM (unnest($1)) AS k (a)', 'SELECT to_jsonb(t.*) FROM fence.t',
       'CREATE OR REPLACE VIEW fence.v AS SELECT 1', 'CREATE TABLE IF NOT EXISTS fence.t ()']
GOOD = ["SELECT *, EXTRACT(epoch FROM a.b) FROM fence.t a WHERE a.b OPERATOR(pg_catalog.=) ANY (ARRAY['x']::pg_catalog.regtype[])",
        'UPDATE fence.t SET a = 1, b = greatest(2, c)', "WITH x AS (SELECT 1) SELECT interval '1 s' FROM x, pg_catalog.unnest($1) AS k (n)",
        "SELECT k.n FROM fence.t, ROWS FROM (pg_catalog.unnest($1), pg_catalog.unnest($2)) WITH ORDINALITY AS k (a, n)",
        'INSERT INTO fence.t AS c (a, b) VALUES ($1, $2::bigint) ON CONFLICT (a) DO UPDATE SET b = c.b']


def main():
    listed = sys.argv[1:] == ['--list']
    for sql in BAD:
        check(list(faults(sql, script=True)), f'nothing is found in: {sql}')
    for sql in GOOD:
        check(not list(faults(sql, script=True)), f'{", ".join(faults(sql, script=True))} is found in: {sql}')
    scripts = glob.glob(os.path.join(TOP, 'pgcache_fence--*.sql'))
    for path in sorted(scripts + glob.glob(os.path.join(TOP, 'src', '**', '*.c'), recursive=True)):
        with open(path, encoding='utf-8') as f:
            (check_script(os.path.basename(path), f.read()) if path in scripts else
             check_source(os.path.basename(path), f.read(), listed))
    check_users()
    with open(os.path.join(TOP, 'pgcache_fence.control'), encoding='utf-8') as f:
        control = f.read()
    check(re.search(r'^schema = pg_catalog$', control, re.M), 'pgcache_fence.control: scripts run with another search_path')
    check(re.search(r'^relocatable = false$', control, re.M), 'pgcache_fence.control: the extension can be moved to another schema')
    check(not re.search(r'^trusted', control, re.M), 'pgcache_fence.control: others than superusers can install the extension')
    print(f'{counts[True]} passed, {counts[False]} failed')
    return 1 if counts[False] or not scripts else 0


if __name__ == '__main__':
    sys.exit(main())
