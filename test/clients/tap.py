"""Prints TAP."""


class Steps(list):
    """Names of methods in their order; a decorator that adds one."""

    def __call__(self, method):
        self.append(method.__name__)
        return method


class Report:
    def __init__(self):
        self.number = self.bad = 0

    def check(self, what, function):
        """Runs a test; whatever it raises is its failure only."""
        self.number += 1
        try:
            function()
            print('ok %d - %s' % (self.number, what), flush=True)
        except Exception as error:
            self.bad += 1
            text = '%s: %s' % (type(error).__name__, error)
            print('not ok %d - %s\n# %s' % (self.number, what, text.replace('\n', '\n# ')), flush=True)

    def finish(self):
        """The exit status."""
        print('1..%d' % self.number)
        return 1 if self.bad or not self.number else 0


def same(got, wanted, what=''):
    if got != wanted:
        raise AssertionError('%sgot %r, wanted %r' % (what and what + ': ', got, wanted))
