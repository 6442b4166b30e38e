"""Checks the pages for new readers. Tables in README.md, doc/performance.md and doc/scaling.md must equal those on the pages where they
come from, so that no figure is typed by hand. Every page and heading that README.md names must exist, and every page in doc/ that any
file names. CONTRIBUTING.md must name every file in src/, and no other. Prints one line per check and "N passed, N failed".

    readme.py [--write]    --write: updates the tables instead

Such a table stands between two comments. The first comment says where the table comes from:

    <!-- table: PAGE "HEADING" columns: NAME, NAME rows: FIRST CELL, FIRST CELL -->

The source is the first table under that heading or, if there is no such heading, the table whose first column has that name. Columns
and rows may be "all". If names contain commas, semicolons separate them. If a run of the benchmark has left out a part
(doc/measured.md), the page says so.
"""
import os
import re
import sys

TOP = os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..')
FILLED = {'README.md': 2, 'doc/performance.md': 28, 'doc/scaling.md': 6}       # page -> number of tables that come from other pages
MEASURED = 'doc/measured.md'
UNMEASURED = '*Not measured in the last run.*\n'
PAGES = ('protocol', 'operations', 'clients', 'reliability', 'performance', 'scaling', 'security', 'comparison', 'messages',
         'testing', 'versions', 'reference')
TABLE = re.compile(r'(<!-- table: (\S+) "([^"]+)" columns: (.*?) rows: (.*?) -->\n)(.*?)(<!-- end of table -->)', re.S)

counts = {True: 0, False: 0}

def check(good, text):
    good = bool(good)
    counts[good] += 1
    print(('ok - ' if good else 'not ok - ') + text)

def read(name):
    with open(os.path.join(TOP, name), encoding='utf-8') as f:
        return f.read()

def names(text):
    return [name.strip() for name in text.split(';' if ';' in text else ',')]

def cells(line):
    return [cell.strip() for cell in line.strip().strip('|').split('|')]

def headings(page):
    return [line.lstrip('#').strip() for line in page.split('\n') if re.match('#+ ', line)]

def slug(heading):
    """The anchor that GitHub gives a heading."""
    return re.sub(r'[^\w\- ]', '', heading.lower()).replace(' ', '-')

def first_table(page, heading):
    """The lines of the first table under the heading, or of the table whose first column has that name."""
    below = re.split(r'^#+ %s$' % re.escape(heading), page, maxsplit=1, flags=re.M)
    table = (re.search(r'(^\|.*\n)+', below[1], re.M) if len(below) == 2 else
             re.search(r'^\| %s \|.*\n(\|.*\n)+' % re.escape(heading), page, re.M))
    return table.group(0).strip().split('\n') if table else []

def extract(page, heading, columns, rows):
    """The lines of the requested table, or a line that names what is missing."""
    lines = first_table(read(page), heading)
    if not lines and page == MEASURED:
        return UNMEASURED, None
    if not lines:
        return None, f'{page} has no table under "{heading}"'
    head = cells(lines[0])
    body = [cells(line) for line in lines[2:]]
    columns = head if columns == ['all'] else columns
    if page == MEASURED and rows != ['all']:
        rows = [name for name in rows if name in [line[0] for line in body]]
    missing = [name for name in columns if name not in head] + [name for name in rows if name not in [line[0] for line in body] and rows != ['all']]
    if missing:
        return None, f'{page}, "{heading}" has no {missing}'
    chosen = [head.index(name) for name in columns]
    picked = [head, cells(lines[1])] + (body if rows == ['all'] else [line for name in rows for line in body if line[0] == name])
    return ''.join('| ' + ' | '.join(line[n] for n in chosen) + ' |\n' for line in picked), None

def tables(text, write):
    def each(match):
        begin, page, heading, columns, rows, present, end = match.groups()
        wanted, problem = extract(page, heading, names(columns), names(rows))
        if not write:
            check(wanted == present, f'the table of {page}, "{heading}"' +
                  (f': {problem}' if problem else '' if wanted == present else ' differs: sh test/unit/readme.sh --write'))
        elif problem:
            sys.exit(problem)
        return begin + (wanted or present) + end

    return TABLE.sub(each, text)

def links(text):
    for link in sorted(set(re.findall(r'\]\(([^):]+)\)', text))):
        page, _, anchor = link.partition('#')
        check(os.path.exists(os.path.join(TOP, page)) and (not anchor or anchor in map(slug, headings(read(page)))), f'{link} exists')
    for page, heading in re.findall(r'\]\((\S+?\.md)\), "([^"]+)"', text):
        check(os.path.exists(os.path.join(TOP, page)) and heading in headings(read(page)), f'{page} has "{heading}"')

def check_files():
    text = read('CONTRIBUTING.md')
    told, folder = set(), None
    for row in re.findall(r'^\| (?:`(src/.*)`)? ?\| (`.*?`) \|', text, re.M):
        folder = row[0] or folder
        told |= {folder + name for name in re.findall(r'`([^`]+)`', row[1])}
    src = os.path.join(TOP, 'src')
    there = {os.path.relpath(os.path.join(directory, name), TOP) for directory, _, files in os.walk(src) for name in files
             if name.endswith(('.c', '.lua')) or name.endswith('.h') and name[:-1] + 'c' not in files and name != 'fence_lua.h'}
    check(told == there, 'the table of CONTRIBUTING.md names the files in src/, each in its folder: '
          f'not {sorted(there - told)}; not there {sorted(told - there)}')
    for name in sorted(os.listdir(os.path.join(TOP, 'test'))):
        if name.endswith('.sh') and '# Sourced ' not in read('test/' + name):
            check(f'test/{name}' in text or f'test/{name}' in read('README.md') + read('doc/testing.md') + read('Makefile'),
                  f'somebody tells of test/{name}')


def main():
    if '--write' in sys.argv[1:]:
        for page in FILLED:
            text = tables(read(page), True)
            with open(os.path.join(TOP, page), 'w', encoding='utf-8') as f:
                f.write(text)
        return
    for page, count in FILLED.items():
        check(len(TABLE.findall(read(page))) == count, f'in {page} {count} tables are another page\'s')
        tables(read(page), False)
    links(read('README.md'))
    check_files()
    named = set(PAGES)
    trees = (tree[0] for root in ('src', 'test/t') for tree in os.walk(os.path.join(TOP, root)))
    for directory in ('.', *trees, 'doc', 'monitoring', 'test/unit'):
        for name in os.listdir(os.path.join(TOP, directory)):
            if name.endswith(('.md', '.sql', '.c', '.h', '.lua', '.pl', '.yml')):
                named |= set(re.findall(r'\bdoc/(\w+)\.md', read(os.path.join(directory, name))))
    for name in sorted(named):
        check(os.path.exists(os.path.join(TOP, 'doc', name + '.md')), f'doc/{name}.md exists')
    print(f'{counts[True]} passed, {counts[False]} failed')
    sys.exit(1 if counts[False] else 0)

main()
