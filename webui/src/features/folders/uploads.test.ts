import { describe, expect, it } from 'vitest';
import { Problem } from '../../api/problems';
import { addressesOf } from '../../api/text';
import { joinPath, matchesName, nameFault, ticketUrl } from './rules';
import { forgetUploads, type SendingEvents, UploadQueue } from './uploads';

interface Sent {
  file: File;
  url: string;
  events: SendingEvents;
  aborted: boolean;
}

function queueWith(
  requestTicket = (path: string) => Promise.resolve({ url: 'http://storage/upload', token: `t-${path}` }),
) {
  const sent: Sent[] = [];
  const stored = new Map<string, string>();
  let done = 0;
  const requests: string[][] = [];
  const queue = new UploadQueue({
    folder: 'f',
    requestTickets: (files) => {
      requests.push(files.map(({ path }) => path));
      return Promise.all(files.map(({ path }) => requestTicket(path)));
    },
    onDone: () => {
      done += 1;
    },
    send: (file, url, events) => {
      const entry: Sent = { file, url, events, aborted: false };
      sent.push(entry);
      return {
        start: () => {},
        abort: () => {
          entry.aborted = true;
        },
      };
    },
    storage: {
      getItem: (key) => stored.get(key) ?? null,
      setItem: (key, value) => void stored.set(key, value),
      removeItem: (key) => void stored.delete(key),
    },
  });
  return { queue, sent, stored, requests, done: () => done };
}

const settled = () => new Promise((resolve) => setTimeout(resolve, 0));
const file = (name: string, content = 'abc') => new File([content], name, { lastModified: 1 });
const entries = (...names: string[]) => names.map((name) => ({ file: file(name), path: name }));

describe('UploadQueue', () => {
  it('sends three at a time, the rest after them', async () => {
    const { queue, sent, done } = queueWith();
    queue.add(entries('a', 'b', 'c', 'd'));
    await settled();
    expect(sent.map(({ url }) => url)).toEqual(['a', 'b', 'c'].map((name) => `http://storage/upload?token=t-${name}`));
    sent[0]?.events.onProgress(2);
    expect(queue.snapshot()[0]).toMatchObject({ sent: 2, state: 'sending' });
    sent[0]?.events.onSuccess();
    await settled();
    expect(sent).toHaveLength(4);
    expect(done()).toBe(1);
    queue.clearDone();
    expect(queue.snapshot().map(({ name }) => name)).toEqual(['b', 'c', 'd']);
  });

  it('goes on with an upload that was broken off, also after a reload', async () => {
    const { queue, sent, stored } = queueWith();
    queue.add(entries('a'));
    await settled();
    const url = sent[0]?.url;
    queue.cancel(1);
    expect(sent[0]?.aborted).toBe(true);
    expect([...stored.values()]).toEqual([url]);
    queue.add(entries('a'));
    await settled();
    expect(sent[1]?.url).toBe(url);
  });

  it('asks for a new ticket where the old one has expired', async () => {
    let count = 0;
    const { queue, sent, stored } = queueWith(() => {
      count += 1;
      return Promise.resolve({ url: 'http://storage/upload', token: String(count) });
    });
    queue.add(entries('a'));
    await settled();
    queue.cancel(1);
    queue.add(entries('a'));
    await settled();
    sent[1]?.events.onError(new Error('expired'));
    await settled();
    expect(sent[2]?.url).toBe('http://storage/upload?token=2');
    sent[2]?.events.onSuccess();
    expect(stored.size).toBe(0);
    expect(queue.snapshot()[0]?.state).toBe('done');
  });

  it('tells why one failed, and tries again when asked', async () => {
    let isRefused = true;
    const { queue, sent } = queueWith((path) =>
      isRefused ? Promise.reject(new Error('full')) : Promise.resolve({ url: 'http://storage/upload', token: path }),
    );
    queue.add(entries('a'));
    await settled();
    expect(queue.snapshot()[0]).toMatchObject({ state: 'failed' });
    expect(queue.snapshot()[0]?.problem?.title).toBe('full');
    isRefused = false;
    queue.retry(1);
    await settled();
    expect(sent).toHaveLength(1);
  });

  it('requests the tickets of those that wait together', async () => {
    const { queue, sent, requests } = queueWith();
    queue.add(entries(...Array.from({ length: 250 }, (_, number) => String(number))));
    for (let index = 0; index < 250; index += 1) {
      await settled();
      sent[index]?.events.onSuccess();
    }
    expect(sent).toHaveLength(250);
    expect(requests.map((paths) => paths.length)).toEqual([100, 100, 50]);
    expect(new Set(requests.flat()).size).toBe(250);
  });

  it('requests each ticket alone after those of several were refused', async () => {
    const { queue, sent, requests } = queueWith((path) =>
      path === 'b'
        ? Promise.reject(new Problem({ title: 'a directory', status: 400 }))
        : Promise.resolve({ url: 'http://storage/u', token: path }),
    );
    queue.add(entries('a', 'b', 'c'));
    for (let round = 0; round < 5; round += 1) await settled();
    expect(sent.map(({ url }) => url)).toEqual(['http://storage/u?token=a', 'http://storage/u?token=c']);
    expect(queue.snapshot().map(({ state }) => state)).toEqual(['sending', 'failed', 'sending']);
    expect(requests).toEqual([['a', 'b', 'c'], ['a'], ['b'], ['c']]);
  });

  it('sends no bytes of an empty file', async () => {
    const { queue, sent } = queueWith();
    queue.add([{ file: file('empty', ''), path: 'empty' }]);
    await settled();
    expect(sent).toHaveLength(0);
    expect(queue.snapshot()[0]?.state).toBe('done');
  });
});

describe('a sign-out', () => {
  it('stops uploads and forgets where they go on', async () => {
    const { queue, sent } = queueWith();
    queue.add(entries('a', 'b', 'c', 'd'));
    await settled();
    queue.stop();
    await settled();
    expect(sent.map(({ aborted }) => aborted)).toEqual([true, true, true]);
    expect(queue.snapshot()).toEqual([]);
    localStorage.setItem('backendai-upload:["f"]', 'http://storage/upload?token=t');
    localStorage.setItem('other', 'stays');
    forgetUploads();
    expect(localStorage.getItem('backendai-upload:["f"]')).toBeNull();
    expect(localStorage.getItem('other')).toBe('stays');
    localStorage.removeItem('other');
  });
});

describe('rules', () => {
  it('keeps paths inside of the folder', () => {
    expect(joinPath('a//b/', '../c', './d')).toBe('a/b/c/d');
    expect(joinPath('', '..')).toBe('');
  });

  it('names the fault of a name', () => {
    expect(['', 'a/b', '..', 'x'.repeat(256), '한', 'a b'].map(nameFault)).toEqual([
      'empty',
      'slash',
      'dots',
      'long',
      null,
      null,
    ]);
  });

  it('takes apart addresses', () => {
    expect(addressesOf('a@b, c@d;a@b  word')).toEqual({ emails: ['a@b', 'c@d'], faulty: ['word'] });
  });

  it('finds words of a name in any order', () => {
    expect(matchesName('My Data-2', 'data my')).toBe(true);
    expect(matchesName('My Data-2', 'other')).toBe(false);
  });

  it('adds the token to web addresses alone', () => {
    expect(ticketUrl('https://s/download?a=1', 'x&y', { archive: 'true' })).toBe(
      'https://s/download?a=1&token=x%26y&archive=true',
    );
    expect(() => ticketUrl('javascript:alert(1)', 't')).toThrow();
  });
});
