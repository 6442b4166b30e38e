#!/usr/bin/python3
"""Writes the files of doc/clients.md into a directory: extract.py DIRECTORY

A file is a fenced code block whose first line names it after the language. Also a module: blocks() and extract().
"""

import os
import re
import sys

DOCUMENT = os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..', 'doc', 'clients.md')
BLOCK = re.compile(r'^```\w+ (\S+)\n(.*?)^```$', re.MULTILINE | re.DOTALL)


def blocks():
    """name -> text."""
    with open(DOCUMENT, encoding='utf-8') as file:
        found = BLOCK.findall(file.read())
    files = dict(found)
    if not found or len(files) != len(found):
        raise ValueError('%s has no files, or two of one name' % DOCUMENT)
    return files


def extract(directory, changes=()):
    """changes: (name, old, new), made on the way; each must fit exactly once."""
    files = blocks()
    for name, old, new in changes:
        if files[name].count(old) != 1:
            raise ValueError('%r is not once in %s' % (old, name))
        files[name] = files[name].replace(old, new)
    os.makedirs(directory, exist_ok=True)
    for name, text in files.items():
        with open(os.path.join(directory, name), 'w', encoding='utf-8') as file:
            file.write(text)


if __name__ == '__main__':
    extract(sys.argv[1])
