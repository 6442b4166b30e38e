#!/usr/bin/python3
"""The tests of test_snippets.py against a Redis Cluster."""

import sys

import test_snippets

sys.exit(test_snippets.main(cluster=True))
