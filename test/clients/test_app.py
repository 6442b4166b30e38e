#!/usr/bin/python3
"""The service in app/ against PostgreSQL and Redis, used by two tabs of a browser. Prints TAP."""

import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading

import psycopg2

from chromium import Browser
from system import HERE, System, wait_for
from tap import Report, Steps, same

APP = os.path.join(HERE, 'app')


class Service:
    """The server process, made of the files of app/, with the package clients/node as npm would install it."""

    def __init__(self, system):
        self.system = system
        self.directory = os.path.join(system.directory, 'app')
        shutil.copytree(APP, self.directory)
        modules = os.path.join(self.directory, 'node_modules')
        os.mkdir(modules)
        for name in os.listdir(os.environ['CLIENTS_MODULES']):
            os.symlink(os.path.join(os.environ['CLIENTS_MODULES'], name), os.path.join(modules, name))
        shutil.copytree(os.path.join(HERE, '..', '..', 'clients', 'node'), os.path.join(modules, 'pgcache-fence'))
        self.log = open(os.path.join(system.directory, 'drivers.log'), 'ab')
        self.process = subprocess.Popen(['node', 'server.js'], cwd=self.directory, env={**system.environment(), 'PORT': '0'},
                                        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self.log, text=True)
        self.url = self.process.stdout.readline().strip()
        if not self.url.startswith('http://'):
            raise RuntimeError('the service did not start')

    def stop(self):
        self.process.kill()
        self.process.wait()
        self.log.close()


STEPS = Steps()


class Visit:
    """Two tabs that show the same room. They refresh only when they are told to, so that each refresh is one read."""

    def __init__(self, system, service, browser):
        self.system = system
        self.browser = browser
        self.one, self.two = browser.tab(service.url), browser.tab(service.url)
        self.url = service.url

    def counts(self):
        return self.one.run("fetch('/room/7').then(r => r.json()).then(a => a.counts)")

    def refresh(self, tab):
        """Clicks the button and waits for the answer."""
        before = tab.run('asked')
        tab.click('#refresh')
        tab.until('Number(document.body.dataset.shown) > %d' % before, True, 'the answer to be shown')

    @STEPS
    def both_show_the_room(self):
        for tab in (self.one, self.two):
            tab.until('document.querySelectorAll("#members li").length', 3, 'the members')
            same(tab.text('#title'), 'Observatory')
            same(tab.run('document.querySelector("[name=topic]").value'), 'Clear skies on Thursday')
            same(tab.run('document.querySelector("[name=guests]").checked'), True)
            same(tab.run('[...document.querySelectorAll("#members li span")].map(e => e.textContent).join()'), 'Ada,Grace,Linus')

    @STEPS
    def it_refreshes_by_itself(self):
        self.one.call('Page.bringToFront')
        before = self.one.run('asked')
        wait_for(lambda: self.one.run('asked') >= before + 2, 'two refreshes', 60)
        for tab in (self.one, self.two):
            tab.click('#auto')
            same(tab.run('document.querySelector("#auto").checked'), False)

    @STEPS
    def reads_are_hits(self):
        wait_for(lambda: self.refresh(self.one) or self.one.run(
            'document.querySelectorAll(".chip.hit").length') == 2, 'both parts to be hits', 60)
        same(self.counts()['hit'] > 0, True, 'hits')
        same(self.one.text('#rate') not in ('–', '0.0 %'), True, 'the rate that is shown')

    @STEPS
    def an_edit_in_one_tab_is_in_the_other_at_its_next_refresh(self):
        for n in range(3):
            name = 'Dark Side %d' % n
            self.one.type('[name=name]', name)
            self.one.choose('[name=colour]', 'rose')
            self.one.click('#save')
            self.one.until('document.querySelector("#title").textContent', name, 'the tab that saved')
            self.refresh(self.two)
            same(self.two.text('#title'), name)
            same(self.two.run('document.documentElement.dataset.colour'), 'rose')
            same(self.system.sql('SELECT name, colour FROM room'), [(name, 'rose')])

    @STEPS
    def what_is_being_edited_stays(self):
        self.one.type('[name=topic]', 'half a sent')
        self.refresh(self.one)
        same(self.one.run('document.querySelector("[name=topic]").value'), 'half a sent')
        self.one.run('document.querySelector("[name=topic]").classList.remove("edited"), 0')
        self.refresh(self.one)
        same(self.one.run('document.querySelector("[name=topic]").value'), 'Clear skies on Thursday')

    def members(self, tab):
        self.refresh(tab)
        return tab.run('[...document.querySelectorAll("#members li")].map(e => e.children[0].textContent + ":" +'
                       ' e.children[1].value).join()')

    @STEPS
    def members_are_one_value(self):
        self.two.choose('#members li:nth-child(3) select', 'moderator')
        self.two.until('document.querySelector("#members").dataset.shown.includes("Linus\\",\\"role\\":\\"moderator") ||'
                       'document.querySelector("#members").dataset.shown.split("moderator").length', 3, 'the new role')
        same(self.members(self.one), 'Ada:owner,Grace:moderator,Linus:moderator')
        self.two.type('#add input', 'Margaret')
        self.two.click('#add button')
        self.two.until('document.querySelectorAll("#members li").length', 4, 'the new member')
        same(self.members(self.one), 'Ada:owner,Grace:moderator,Linus:moderator,Margaret:guest')
        self.one.click('#members li:nth-child(2) button')
        self.one.until('document.querySelectorAll("#members li").length', 3, 'the member to go')
        same(self.members(self.two), 'Ada:owner,Linus:moderator,Margaret:guest')

    @STEPS
    def a_change_by_anybody_is_shown(self):
        self.system.sql("UPDATE room SET topic = 'from psql'")
        self.system.sql("DELETE FROM room_member WHERE member = 'Linus'")
        for tab in (self.one, self.two):
            same(self.members(tab), 'Ada:owner,Margaret:guest')
            same(tab.text('#topic'), 'from psql')

    @STEPS
    def markup_is_text(self):
        name = '<img src=x onerror="document.title=1">&amp;'
        self.one.type('[name=name]', name)
        self.one.click('#save')
        self.one.until('document.querySelector("#title").textContent', name, 'the name')
        self.refresh(self.two)
        same((self.two.text('#title'), self.two.run('document.images.length')), (name, 0))

    @STEPS
    def a_wrong_request_is_told(self):
        self.one.run("send({what: 'role', member: 'Ada', role: 'king'})")
        self.one.until('document.querySelector("#problem").textContent.includes("room_member_role_check")', True, 'the reason')
        same(self.one.run("send({what: 'nonsense'}).then(() => at('problem').textContent !== '')"), True)
        same(self.one.run("fetch('/room/x').then(r => r.status)"), 404)

    @STEPS
    def without_redis_it_goes_on(self):
        redis = self.system.redis[0]
        redis.kill9()
        self.refresh(self.one)
        same(self.one.run('document.querySelectorAll(".chip.unavailable").length'), 2)
        redis.start()
        self.system.sql("UPDATE room SET topic = 'after the restart'")
        self.refresh(self.two)
        same(self.two.text('#topic'), 'after the restart')
        self.reads_are_hits()

    @STEPS
    def nothing_is_stale_while_everything_changes(self):
        stop = threading.Event()

        def write():
            connection = psycopg2.connect(self.system.postgres.dsn())
            connection.autocommit = True
            number = 0
            while not stop.wait(0.2):
                number += 1
                connection.cursor().execute("UPDATE room SET topic = 'number %s'", (number,))
                connection.cursor().execute('UPDATE room_member SET role = role')
            connection.close()
        writer = threading.Thread(target=write)
        writer.start()
        before = self.counts()
        try:
            wait_for(lambda: self.one.run(
                "Promise.all(Array.from({length: 10}, () => fetch('/room/7').then(r => r.json())))"
                ".then(all => all.pop().counts)")['checked'] >= before['checked'] + 20, 'checks', 120)
        finally:
            stop.set()
            writer.join()
        counts = self.counts()
        same(counts['hit'] > before['hit'] and counts['stale'] == 0, True, json.dumps(counts))
        print('# ' + json.dumps(counts))

    @STEPS
    def the_pages_had_no_errors(self):
        same(self.browser.complaints, [])

    @STEPS
    def a_stale_read_would_be_counted(self):
        """Somebody sets an old fence back by hand, which no rule covers."""
        fence = self.system.sql("SELECT fence.fence_key('room', '7')")[0][0]
        self.reads_are_hits()
        old = self.system.on_redis(fence, 'GET', fence)
        self.system.sql("UPDATE room SET topic = 'newest'")
        wait_for(lambda: not self.system.sql('SELECT 1 FROM fence.pending'), 'the end of the reservation')

        def counted():
            self.system.on_redis(fence, 'SET', fence, old)
            self.refresh(self.one)
            return self.one.text('#stale') != '0'
        wait_for(counted, 'a stale read to be counted', 60)
        same(self.one.run('document.querySelector("#stale").className'), 'bad')


def main():
    directory = tempfile.mkdtemp(prefix='app.')
    system, report = System(directory), Report()
    service = browser = None
    try:
        system.start()
        with open(os.path.join(APP, 'schema.sql')) as file:
            system.sql(file.read())
        service = Service(system)
        browser = Browser(directory)
        visit = Visit(system, service, browser)
        for name in STEPS:
            report.check('app: ' + name.replace('_', ' '), getattr(visit, name))
            if name == 'reads_are_hits' and os.environ.get('CLIENTS_PICTURE'):
                with open(os.environ['CLIENTS_PICTURE'], 'wb') as file:
                    file.write(base64.b64decode(visit.one.picture()))
    finally:
        for each in (browser, service, system):
            if each:
                each.stop()
        if report.bad:
            system.show_logs()
    shutil.rmtree(directory)
    return report.finish()


if __name__ == '__main__':
    sys.exit(main())
