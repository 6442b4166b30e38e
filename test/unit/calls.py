"""Compares the calls that src/redis/calls.c makes (test_calls.c prints them) with the signatures in the function library.

A signature is a comment above its function: "name <key>... | argument [argument] (argument argument)... -> answer".
"""

import os
import re
import sys

TOP = os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..')
FILES = ['fence.lua', 'arming.lua', 'buckets.lua', 'marks.lua', 'fills.lua', 'listings.lua', 'hot.lua']
NUMBERS = {'11': 'version', '12': 'ttl_ms', '13': 'since', '14': 'ended', '15': 'id', '16': 'grant', '17': 'limit', '18': 'until',
           '19': 'timeline', '20': 'turn', '21': 'margin', '22': 'number', '23': 'running'}
# Functions that only clients call, not the C code. Calls for effects are elsewhere.
NOT_IN_C = set()

passed = failed = 0


def check(ok, what):
    global passed, failed
    if ok:
        passed += 1
    else:
        failed += 1
        print(f'not ok - {what}')


def pattern_of(text):
    """A regular expression for a list of names, each followed by a blank."""
    out = ''
    for token in re.findall(r'[<>()\[\]]|\.\.\.|[\w|-]+', text):
        if token in '<>':
            continue
        if token == '(':
            out += '(?:'
        elif token == '[':
            out += '(?:'
        elif token == ']':
            out += ')?'
        elif token == ')':
            out += ')'
        elif token == '...':
            out += '*'
        else:
            out += '(?:' + '(?:' + '|'.join(map(re.escape, token.split('|'))) + ') )'
    return out


def signatures():
    """Function -> (keys, arguments), as regular expressions."""
    result = {}
    for name in FILES:
        with open(os.path.join(TOP, 'src/redis', name)) as f:
            for line in f:
                found = re.match(r'-- ([a-z_]+) (?=[<|])((?:<[\w-]+>[. ]*|\[<[\w-]+>\] ?)*)(?:\| (.*?))? ?->', line)
                if found:
                    result['fence_' + found.group(1)] = (pattern_of(found.group(2)), pattern_of(found.group(3) or ''))
    return result


def registered():
    names = set()
    for name in FILES:
        with open(os.path.join(TOP, 'src/redis', name)) as f:
            names |= set(re.findall(r"^register(?:_keyed)?\('(fence_\w+)'", f.read(), re.M))
    return names


def named(string, counts):
    if string == 'namespace epoch':
        return 'header'
    before, hash, digits = string.partition('#')
    if re.fullmatch('[0-9][0-9]', digits):          # an echo may stand behind a number
        return (named(before, counts) + ' ' if before else '') + 'echo'
    if string.isdigit() and string not in NUMBERS:
        return 'n' if int(string) in counts else f'number {string}'
    return NUMBERS.get(string, string) if string else 'ttl_ms'


def main():
    known, called = signatures(), set()
    check(set(known) == registered(), f'each function has a signature: {sorted(set(known) ^ registered())}')
    for line in sys.stdin:
        strings = line.rstrip('\n').split('\t')
        if strings[0] == 'word':
            check(strings[1] in ('7.ab', '=5 7.ab', '-7.ab'), f'the word {strings[1]}')
            continue
        function, nkeys = strings[1], int(strings[2])
        called.add(function)
        keys = strings[3:3 + nkeys]
        arguments = strings[3 + nkeys:]
        if strings[0] == 'FCALL_RO' and arguments and re.fullmatch('#[0-9]+', arguments[-1]):
            arguments.pop()             # a nonce: see answering() in fence.lua
        names = ''.join(named(s, (0, 1, 2)) + ' ' for s in arguments).replace('- n', 'stamp n')
        check(strings[0] in ('FCALL', 'FCALL_RO'), f'{function} is called')
        check(re.fullmatch(known[function][0], ''.join(k + ' ' for k in keys)), f'{function} has keys {keys}')
        check(re.fullmatch(known[function][1], names), f'{function} has arguments {names}')
    check(called | NOT_IN_C == set(known), f'all functions are called in C: {sorted(set(known) - called - NOT_IN_C)}')
    print(f'{passed} passed, {failed} failed')
    sys.exit(failed > 0)


main()
