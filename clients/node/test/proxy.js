'use strict';
// A proxy before a server, for tests: it delays what passes, cuts its connections when it is told to, and changes what the server
// says: proxy.change has a text and gives one of the same length. proxy.connections counts all that were made.
const net = require('node:net');

async function proxyOf(t, { host, port }, ms) {
  const pairs = new Set();
  const proxy = { connections: 0, change: null };
  const server = net.createServer(near => {
    const far = net.connect(port, host);
    const pair = [near, far];
    pairs.add(pair);
    proxy.connections++;
    const late = other => bytes => {
      const passed = proxy.change && other === near ? Buffer.from(proxy.change(bytes.toString('latin1')), 'latin1') : bytes;
      setTimeout(() => { if (!other.destroyed) other.write(passed); }, ms);
    };
    near.on('data', late(far));
    far.on('data', late(near));
    for (const end of pair) {
      end.setNoDelay(true);
      end.on('error', () => {});
      end.on('close', () => {
        pairs.delete(pair);
        for (const each of pair) each.destroy();
      });
    }
  });
  await new Promise(resolve => { server.listen(0, '127.0.0.1', resolve); });
  const cut = () => { for (const pair of pairs) for (const end of pair) end.destroy(); };
  t.after(() => {
    server.close();
    cut();
  });
  return Object.assign(proxy, { node: { host: '127.0.0.1', port: server.address().port }, cut });
}

module.exports = { proxyOf };
