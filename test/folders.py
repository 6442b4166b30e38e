"""Checks the structure of src/: which folder may include which, and that no files include each other in a circle.

The table of CONTRIBUTING.md, "Where things are", is the order of the folders: a file includes files of its own folder and of
folders above it in the table. A header and the source file of the same name count as one file. So that the includes tell the
truth, what a header declares is defined in the source file of its name, or in the header itself.

Prints what is wrong, one line each; fails if anything is. With --picture: the folders, their lines, and who includes whom.
"""
import os
import re
import sys
from collections import defaultdict

TOP = os.path.join(os.path.dirname(os.path.abspath(__file__)), '..')
SRC = os.path.join(TOP, 'src')
ROW = re.compile(r'^\| `src/(?:(\w+)/)?` \|', re.M)
INCLUDE = re.compile(r'^#include "([^"]+)"$', re.M)
# A function or a variable, at the beginning of a line; attributes and arrays may follow.
DECLARED = re.compile(r'^extern\s[^;{(]*?(?:\(\*)?(\w+)\)?\s*[(\[;]', re.M)

def order():
    """Folder -> its place; '' is src/ itself."""
    with open(os.path.join(TOP, 'CONTRIBUTING.md'), encoding='utf-8') as f:
        return {folder: place for place, folder in enumerate(ROW.findall(f.read()))}

def sources():
    """Path below src/ -> text."""
    found = {}
    for directory, _, names in os.walk(SRC):
        for name in names:
            if name.endswith(('.c', '.h')) and name != 'fence_lua.h':
                path = os.path.join(directory, name)
                with open(path, encoding='utf-8') as f:
                    found[os.path.relpath(path, SRC)] = f.read()
    return found

def stem(path):
    return os.path.splitext(path)[0]

def includes(texts):
    """File (without .c or .h) -> files that it includes."""
    graph = defaultdict(set)
    for path, text in texts.items():
        graph[stem(path)] |= {stem(name) for name in INCLUDE.findall(text) if name in texts} - {stem(path)}
    return graph

def circle(graph):
    """One circle of files as a list, or None."""
    state = {}

    def visit(file, way):
        state[file] = 'open'
        for other in sorted(graph[file]):
            if state.get(other) == 'open':
                return way[way.index(other):] + [other] if other in way else [file, other]
            if other not in state:
                found = visit(other, way + [other])
                if found:
                    return found
        state[file] = 'done'
        return None

    for file in sorted(graph):
        if file not in state:
            found = visit(file, [file])
            if found:
                return found
    return None

def faults(texts, places):
    for path in sorted(texts):
        if os.path.dirname(path) not in places:
            yield f'src/{path}: its folder is not in the table of CONTRIBUTING.md'
    graph = includes(texts)
    for file in sorted(graph):
        for other in sorted(graph[file]):
            if places.get(os.path.dirname(other), 0) > places.get(os.path.dirname(file), 0):
                yield f'src/{file} includes {other}, whose folder stands below its own'
    found = circle(graph)
    if found:
        yield 'files include each other: ' + ' -> '.join(found)
    for path in sorted(texts):
        if path.endswith('.h'):
            yield from strangers(path, texts)

def strangers(path, texts):
    """What a header declares and neither it nor the source file of its name defines."""
    own = texts.get(stem(path) + '.c', '')
    for name in DECLARED.findall(re.sub(r'/\*.*?\*/', '', texts[path], flags=re.S)):
        if not re.search(rf'^(?!extern)(?:\w[\w \t*(]*[ \t*])?{name}\)?\s*[(\[;=]', own, re.M):
            yield f'src/{path} declares {name}, which src/{stem(path)}.c does not define'

def picture(texts, places):
    graph = includes(texts)
    for folder in places:
        mine = [path for path in texts if os.path.dirname(path) == folder]
        lines = sum(texts[path].count('\n') for path in mine)
        used = {os.path.dirname(other) for path in mine for other in graph[stem(path)]} - {folder}
        print(f'{folder or "(src)":10} {len(mine):3} files {lines:6} lines  includes {" ".join(sorted(used, key=lambda f: places[f]))}')

def main():
    texts, places = sources(), order()
    if '--picture' in sys.argv[1:]:
        picture(texts, places)
        return
    wrong = list(faults(texts, places))
    for fault in wrong:
        print(fault)
    sys.exit(1 if wrong or not texts or not places else 0)

main()
