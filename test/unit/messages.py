"""Compares the messages of src/ and of the SQL scripts with doc/messages.md, which must explain each LOG, WARNING and ERROR, and no
other messages.

The document has … in place of values that a message fills in. --list prints the messages, one a line, for authors of the document.
"""
import glob
import os
import re
import sys

TOP = os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..')
LITERAL = r'"(?:[^"\\]|\\.)*"'
PIECES = rf'((?:{LITERAL}|INT64_FORMAT|\s)+)'
FILLED_IN = re.compile(r'%[-+ #0-9.*]*(?:hh|h|ll|l|z)?[a-zA-Z]')
LEVELS = ('LOG', 'WARNING', 'ERROR', 'FATAL', 'PANIC', 'NOTICE', 'INFO')


def text_of(pieces):
    parts = re.findall(rf'{LITERAL}|INT64_FORMAT', pieces)
    text = ''.join('%lld' if p == 'INT64_FORMAT' else p[1:-1] for p in parts)
    return FILLED_IN.sub('…', text.replace('\\"', '"').replace('\\\\', '\\').replace('%%', '%'))


def messages_of(source):
    """(level, text) of each message that users or logs see."""
    source = re.sub(r'/\*.*?\*/', '', source, flags=re.S)
    for call in re.finditer(r'\b(ereport|elog)\(\s*(\w+)\s*,', source):
        level = call.group(2)
        if level not in LEVELS:
            continue
        if call.group(1) == 'elog':
            text = re.compile(r'\s*' + PIECES).match(source, call.end())
        else:
            text = re.compile(r'\berrmsg(?:_plural|_internal)?\(\s*' + PIECES).search(source, call.end())
        yield level, text_of(text.group(1))
    for text in re.finditer(r'\bGUC_check_errmsg\(\s*' + PIECES, source):
        yield 'ERROR', text_of(text.group(1))


def in_source():
    found = set()
    for path in glob.glob(os.path.join(TOP, '*.sql')):
        with open(path, encoding='utf-8') as f:
            found.update(('ERROR', text.replace("''", "'").replace('%', '…'))
                         for text in re.findall(r"RAISE EXCEPTION '((?:[^']|'')*)'", f.read()))
    for path in sorted(glob.glob(os.path.join(TOP, 'src', '**', '*.c'), recursive=True)):
        with open(path, encoding='utf-8') as f:
            found.update(messages_of(f.read()))
    return found


def in_document():
    """(level, text) from the first two columns of the tables, and those of them that have no explanation."""
    found, empty = set(), set()
    with open(os.path.join(TOP, 'doc', 'messages.md'), encoding='utf-8') as f:
        for line in f:
            row = re.match(r'\| (\w+) \| `(.*?)` \| (.*) \|$', line)
            if row:
                found.add(row.groups()[:2])
                if not row.group(3).strip():
                    empty.add(row.groups()[:2])
    return found, empty


def main():
    source = in_source()
    if sys.argv[1:] == ['--list']:
        for level, text in sorted(source):
            print(f'| {level} | `{text}` |  |')
        return 0
    document, empty = in_document()
    wrong = [f'not in doc/messages.md: {level}: {text}' for level, text in sorted(source - document)]
    wrong += [f'not in src/ any more: {level}: {text}' for level, text in sorted(document - source)]
    wrong += [f'not explained: {level}: {text}' for level, text in sorted(empty)]
    print('\n'.join(wrong), end='\n' if wrong else '')
    print(f'{len(source & document) - len(empty)} passed, {len(wrong)} failed')
    return 1 if wrong or not source else 0


if __name__ == '__main__':
    sys.exit(main())
