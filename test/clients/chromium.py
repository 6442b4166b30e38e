"""A headless Chromium and its tabs, spoken to over two pipes (--remote-debugging-pipe): no port, no library.

Owns: the browser and its profile, both gone with stop(). Every wait has a deadline.
"""

import json
import os
import selectors
import shutil
import subprocess
import sys
import time

from system import Timeout, wait_for

ANSWER_SECONDS = 90

# Chromium reads requests from descriptor 3 and writes answers to 4; whatever their numbers were here.
PLACE_PIPES = '''import fcntl, os, sys
r, w = (fcntl.fcntl(int(n), fcntl.F_DUPFD, 10) for n in sys.argv[1:3])
os.dup2(r, 3)
os.dup2(w, 4)
os.execvp(sys.argv[3], sys.argv[3:])
'''
# No sandbox: it does not work in every container, and the only pages here are our own.
OPTIONS = ['--headless', '--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage', '--no-first-run', '--disable-extensions',
           '--disable-background-networking', '--disable-component-update', '--disable-sync', '--window-size=1100,1000',
           '--remote-debugging-pipe']


def program():
    for name in ('chromium', 'chromium-headless-shell'):
        if shutil.which(name):
            return name
    raise RuntimeError('there is no chromium')


class Browser:
    def __init__(self, directory):
        self.profile = os.path.join(directory, 'chromium')
        self.messages = {}              # id -> answer
        self.complaints = []            # errors of the pages
        self.last = 0
        self.buffer = b''
        their_in, self.out = os.pipe()
        self.inward, their_out = os.pipe()
        with open(os.path.join(directory, 'chromium.log'), 'ab') as log:
            self.process = subprocess.Popen(
                [sys.executable, '-c', PLACE_PIPES, str(their_in), str(their_out), program(), *OPTIONS,
                 '--user-data-dir=' + self.profile, 'about:blank'], pass_fds=(their_in, their_out), start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={**os.environ, 'HOME': directory})
        os.close(their_in)
        os.close(their_out)
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.inward, selectors.EVENT_READ)

    def call(self, method, session=None, **parameters):
        """The result of one request."""
        self.last += 1
        number = self.last
        message = {'id': number, 'method': method, 'params': parameters, **({'sessionId': session} if session else {})}
        os.write(self.out, json.dumps(message).encode() + b'\0')
        deadline = time.monotonic() + ANSWER_SECONDS
        while number not in self.messages:
            self.receive(deadline)
        answer = self.messages.pop(number)
        if 'error' in answer:
            raise RuntimeError('%s: %s' % (method, answer['error']))
        return answer['result']

    def receive(self, deadline):
        if not self.selector.select(max(0, deadline - time.monotonic())):
            raise Timeout('Chromium did not answer')
        read = os.read(self.inward, 1 << 20)
        if not read:
            raise RuntimeError('Chromium ended')
        *whole, self.buffer = (self.buffer + read).split(b'\0')
        for text in whole:
            message = json.loads(text)
            if 'id' in message:
                self.messages[message['id']] = message
            elif message['method'] == 'Runtime.exceptionThrown':
                self.complaints.append(json.dumps(message['params']['exceptionDetails'])[:500])

    def tab(self, url):
        return Tab(self, url)

    def stop(self):
        try:
            self.call('Browser.close')
            self.process.wait(20)
        except (OSError, RuntimeError, subprocess.TimeoutExpired):
            self.process.kill()
            self.process.wait()
        os.close(self.out)
        os.close(self.inward)
        shutil.rmtree(self.profile, ignore_errors=True)


class Tab:
    def __init__(self, browser, url):
        self.browser = browser
        self.target = browser.call('Target.createTarget', url=url)['targetId']
        self.session = browser.call('Target.attachToTarget', targetId=self.target, flatten=True)['sessionId']
        self.call('Runtime.enable')

    def call(self, method, **parameters):
        return self.browser.call(method, self.session, **parameters)

    def run(self, script):
        """The value of an expression; of a promise, what it becomes."""
        answer = self.call('Runtime.evaluate', expression=script, returnByValue=True, awaitPromise=True)
        if 'exceptionDetails' in answer:
            raise RuntimeError('%s: %s' % (script, answer['exceptionDetails']))
        return answer['result'].get('value')

    def until(self, script, wanted, what):
        wait_for(lambda: self.run(script) == wanted, '%s (%s is %r)' % (what, script, wanted), 60, 0.05)

    def text(self, selector):
        return self.run('document.querySelector(%s).textContent' % json.dumps(selector))

    def click(self, selector):
        """As a mouse does: moves, presses, releases where the element is."""
        box = self.run('(e => { e.scrollIntoView({block: "center"}); const b = e.getBoundingClientRect();'
                       ' return [b.x + b.width / 2, b.y + b.height / 2]; })(document.querySelector(%s))' % json.dumps(selector))
        self.call('Page.bringToFront')
        for kind in ('mouseMoved', 'mousePressed', 'mouseReleased'):
            self.call('Input.dispatchMouseEvent', type=kind, x=box[0], y=box[1], button='left', clickCount=1)

    def type(self, selector, text):
        """Replaces what an input has, as a keyboard does."""
        self.run('(e => { e.focus(); e.select(); })(document.querySelector(%s))' % json.dumps(selector))
        self.call('Input.insertText', text=text)

    def choose(self, selector, value):
        self.run('(e => { e.value = %s; e.dispatchEvent(new Event("input", {bubbles: true}));'
                 ' e.dispatchEvent(new Event("change")); })(document.querySelector(%s))' %
                 (json.dumps(value), json.dumps(selector)))

    def picture(self):
        """PNG, as base64."""
        return self.call('Page.captureScreenshot', captureBeyondViewport=True)['data']
