"""Checks every file of the project against .editorconfig: tabs and spaces, trailing blanks, line ends, length of lines (a
tab is indent_size wide), the newline at the end. Prints what is wrong, one line each; fails if anything is.

    style.py [--strict] [FILE...]

max_line_length is where editors wrap; a line that reads better whole may be a third longer. --strict: it may not.
"""
import os
import re
import sys
from itertools import islice

import editorconfig

TOP = os.path.realpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), '..'))
# Not ours or not text; and what building and testing leave.
SKIPPED_DIRECTORIES = {'.git', '.mypy_cache', 'pgcache_fence.egg-info', '__pycache__', 'build-deb', 'node_modules', 'results', 'output_iso', 'tmp_check',
                       'tmp_check_iso'}
SKIPPED_FILES = re.compile(r'\.(o|so|bc|svg|png|pyc|new|diffs|gcno|gcda)$|^fence_lua\.h$|^package-lock\.json$|^regression\.out$')


def project_files():
    for directory, names, files in os.walk(TOP):
        names[:] = sorted(n for n in names if n not in SKIPPED_DIRECTORIES)
        for name in sorted(files):
            path = os.path.join(directory, name)
            if not SKIPPED_FILES.search(name) and os.path.isfile(path) and not os.path.islink(path):
                yield path


def faults_of_line(line, rules, width, strict):
    if line.endswith('\r') and rules.get('end_of_line') == 'lf':
        yield 'carriage return'
        line = line.rstrip('\r')
    if rules.get('trim_trailing_whitespace') == 'true' and line != line.rstrip(' \t'):
        yield 'trailing blanks'
    indent = re.match(r'[ \t]*', line).group()
    if rules.get('indent_style') == 'space' and '\t' in indent:
        yield 'tab in the indentation'
    if rules.get('indent_style') == 'tab' and (' \t' in indent or indent.startswith(' ' * width)):
        yield 'spaces in the indentation'
    longest = rules.get('max_line_length', 'off')
    columns = len(line.expandtabs(width))
    if longest != 'off' and columns > int(longest) * (1 if strict else 4 / 3):
        yield f'{columns} columns'


def faults(path, strict):
    rules = editorconfig.get_properties(path)
    if re.search(r'\.(pl|pm|py)$', path):
        rules.pop('indent_style', None)        # they quote SQL and other languages at length
    with open(path, 'rb') as f:
        content = f.read()
    try:
        text = content.decode('utf-8')
    except UnicodeDecodeError as e:
        yield 0, f'not UTF-8: {e.reason}'
        return
    if text and rules.get('insert_final_newline') == 'true' and not text.endswith('\n'):
        yield text.count('\n') + 1, 'no newline at the end'
    size = rules.get('indent_size', rules.get('tab_width', '8'))
    width = int(size) if size.isdigit() else 8
    for number, line in enumerate(text.split('\n'), 1):
        for fault in faults_of_line(line, rules, width, strict):
            yield number, fault


def main():
    bad = 0
    strict = '--strict' in sys.argv
    for path in [os.path.abspath(a) for a in sys.argv[1:] if a != '--strict'] or project_files():
        found = list(faults(path, strict))
        for number, fault in islice(found, 10):
            print(f'{os.path.relpath(path, TOP)}:{number}: {fault}')
        if len(found) > 10:
            print(f'{os.path.relpath(path, TOP)}: {len(found) - 10} more')
        bad += len(found)
    sys.exit(1 if bad else 0)


main()
