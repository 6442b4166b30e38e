"""The package as pip installs it, without anything from outside; and its types."""

import os
import shutil
import subprocess
import sys

import pytest

PACKAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), '..')


def run(*command, **options):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, **options)
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_pip_installs_it(tmp_path):
    shutil.copytree(PACKAGE, tmp_path / 'source')
    run(sys.executable, '-m', 'pip', 'install', '--no-build-isolation', '--no-deps', '--no-index', '--target', str(tmp_path / 'there'), str(tmp_path / 'source'))
    assert (tmp_path / 'there' / 'pgcache_fence' / 'py.typed').exists()
    told = run(sys.executable, '-c', 'import pgcache_fence; print(pgcache_fence.__file__)', cwd=tmp_path / 'there',
               env={**os.environ, 'PYTHONPATH': str(tmp_path / 'there')})
    assert told.startswith(str(tmp_path / 'there'))


@pytest.mark.skipif(shutil.which('mypy') is None, reason='mypy is not installed')
def test_types(tmp_path):
    run('mypy', '--cache-dir', str(tmp_path), 'src/pgcache_fence', cwd=PACKAGE)
