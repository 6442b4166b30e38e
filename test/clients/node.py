#!/usr/bin/python3
"""The tests of clients/node, with node:test, against PostgreSQL with one Redis, with a Redis Cluster and with shards. Prints TAP.

Arguments are names of its test files (reads); none: all; bench: what a hit costs. CLIENTS_NODE says where the package is with its
modules.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile

from system import System

SECONDS = 600


def place_of(system):
    """What a test needs to know of the servers."""
    return {'pg': {name: value for name, value in system.environment().items() if name.startswith('PG')},
            'redis': [{'port': server.port, 'pid': server.pid, 'command': server.command()} for server in system.redis]}


def tests(package, names):
    """The command that runs the tests of these names."""
    names = names or sorted(name[:-8] for name in os.listdir(os.path.join(package, 'test')) if name.endswith('.test.js'))
    return ['node', '--test', '--test-reporter=tap', '--test-concurrency=1', *('test/%s.test.js' % name for name in names)]


def main():
    package = os.environ['CLIENTS_NODE']
    directory = tempfile.mkdtemp(prefix='node.')
    bench = sys.argv[1:] == ['bench']
    systems = {}
    for name in ('single',) if bench else ('single', 'cluster', 'shards', 'victim'):          # the last one's Redis is killed
        systems[name] = System(os.path.join(directory, name), name == 'cluster', 3 if name == 'shards' else 1)
    try:
        for system in systems.values():
            system.start()
        place = os.path.join(directory, 'place.json')
        with open(place, 'w', encoding='utf-8') as file:
            json.dump({name: place_of(system) for name, system in systems.items()}, file)
        done = subprocess.run(['node', 'bench/hits.js'] if bench else tests(package, sys.argv[1:]), cwd=package,
                              env={**os.environ, 'FENCE_TEST': place}, stdin=subprocess.DEVNULL, timeout=SECONDS, check=False)
        if done.returncode:
            for system in systems.values():
                system.show_logs()
    finally:
        for system in systems.values():
            system.stop()
    shutil.rmtree(directory, ignore_errors=True)
    return done.returncode


if __name__ == '__main__':
    sys.exit(main())
