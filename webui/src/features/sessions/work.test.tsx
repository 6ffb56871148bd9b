import { screen, within } from '@testing-library/react';
import userEvent from '@testing-library/user-event';
import { beforeEach, describe, expect, it, vi } from 'vitest';
import { Problem } from '../../api/problems';
import { openPage } from '../../testing/render';
import { FakeServer } from '../../testing/server';
import { CellBook, outputOf, type RunStep, type StepRequest } from './cells';
import { cursorOf, isCompletable, restOf } from './completions';
import { filesOf, firstFileOf, firstPartOf } from './files';

const step = (status: string, console: unknown[] = [], more: Partial<RunStep> = {}): RunStep => ({
  runId: 'r',
  status,
  exitCode: null,
  console,
  ...more,
});

function bookWith(replies: (RunStep | Error)[]) {
  const requests: StepRequest[] = [];
  const book = new CellBook({
    step: async (request) => {
      requests.push(request);
      const reply = replies.shift() ?? step('finished');
      if (reply instanceof Error) throw reply;
      return reply;
    },
    newRunId: () => 'r',
  });
  return { book, requests };
}

describe('CellBook', () => {
  it('follows a run to its end and adds the next cell', async () => {
    const { book, requests } = bookWith([
      step('continued', [['stdout', 'a']]),
      step(
        'finished',
        [
          ['stdout', 'b'],
          ['media', ['image/png', 'data:image/png;base64,AA']],
        ],
        { exitCode: 0 },
      ),
    ]);
    book.write(1, 'print()');
    await book.run(1);
    expect(requests.map(({ mode }) => mode)).toEqual(['query', 'continue']);
    expect(book.snapshot()[0]).toMatchObject({
      state: 'done',
      number: 1,
      outputs: [
        { kind: 'text', stream: 'stdout', text: 'ab' },
        { kind: 'image', url: 'data:image/png;base64,AA' },
      ],
    });
    expect(book.snapshot()).toHaveLength(2);
  });
  it('gives input, runs in order, and keeps the code of a run that was refused', async () => {
    const { book, requests } = bookWith([
      step('waiting-input', [['stdout', '? ']], { options: { is_password: true } }),
      step('finished'),
      new Problem({ title: 'gone', status: 502 }),
    ]);
    book.write(1, 'input()');
    const first = book.run(1);
    book.write(book.snapshot()[1]?.id ?? 0, 'second');
    const second = book.run(2);
    await Promise.resolve();
    expect(book.snapshot().map(({ state }) => state)).toEqual(['input', 'queued', 'new']);
    expect(book.snapshot()[0]?.isSecret).toBe(true);
    book.remove(1);
    expect(book.snapshot()).toHaveLength(3);
    book.input('x');
    await Promise.all([first, second]);
    expect(requests.map(({ mode, code }) => [mode, code])).toEqual([
      ['query', 'input()'],
      ['input', 'x'],
      ['query', 'second'],
    ]);
    expect(book.snapshot()[1]).toMatchObject({ state: 'failed', code: 'second', problem: { title: 'gone' } });
  });
  it('marks a failed program, and runs no empty cell', async () => {
    const { book, requests } = bookWith([step('finished', [['stderr', 'no']], { options: { raised: true } })]);
    await book.run(1);
    expect(requests).toEqual([]);
    book.write(1, '1/0');
    await book.run(1);
    expect(book.snapshot()[0]?.state).toBe('failed');
  });
  it('forgets what waits when a program is interrupted', async () => {
    const { book } = bookWith([step('waiting-input'), step('finished')]);
    book.write(1, 'input()');
    const run = book.run(1);
    book.write(2, 'x');
    void book.run(2);
    await Promise.resolve();
    book.forgetQueue();
    await run;
    expect(book.snapshot().map(({ state }) => state)).toEqual(['done', 'new', 'new']);
  });
  it('asks for nothing more once the person has left', async () => {
    const { book, requests } = bookWith([step('waiting-input'), step('finished')]);
    book.write(1, 'input()');
    const run = book.run(1);
    book.write(2, 'x');
    void book.run(2);
    await Promise.resolve();
    book.stop();
    await run;
    expect(requests.map(({ mode }) => mode)).toEqual(['query']);
  });
  it.each([
    [['html', '<b>'], { kind: 'html', html: '<b>' }],
    [['media', ['text/plain', 'x']], { kind: 'text', stream: 'stdout', text: 'x' }],
    [['media', ['application/x', 'x']], null],
    [['media', 7], null],
    [['of-tomorrow', 'x'], null],
    ['stdout', null],
  ])('reads %j', (item, output) => expect(outputOf(item)).toEqual(output));
});

function tar(...entries: [name: string, type: string, content: string][]): Uint8Array {
  const blocks = entries.map(([name, type, content]) => {
    const bytes = new Uint8Array(512 + Math.ceil(content.length / 512) * 512);
    const put = (text: string, at: number) => bytes.set(new TextEncoder().encode(text), at);
    put(name, 0);
    put(content.length.toString(8).padStart(11, '0'), 124);
    put(type, 156);
    put(content, 512);
    return bytes;
  });
  return Uint8Array.from([...blocks.flatMap((block) => [...block]), ...new Uint8Array(1024)]);
}

describe('files', () => {
  it('reads an archive behind its headers', () => {
    const read = (bytes: Uint8Array) => {
      const content = firstFileOf(bytes);
      return content && new TextDecoder().decode(content);
    };
    expect(read(tar(['x', 'x', 'path=long'], ['a', '0', 'hello']))).toBe('hello');
    expect(read(tar(['d', '5', '']))).toBeNull();
    expect(read(tar(['a', '0', 'hello']).subarray(0, 514))).toBeNull();
    expect(read(new Uint8Array(0))).toBeNull();
  });
  it('reads the first part of a reply', () => {
    const body = new TextEncoder().encode('--B\r\nContent-Type: x\r\n\r\nab\r\ncd\r\n--B--\r\n');
    const part = firstPartOf(body, 'multipart/mixed; boundary="B"');
    expect(part && new TextDecoder().decode(part)).toBe('ab\r\ncd');
    expect(firstPartOf(body, 'text/plain')).toBeNull();
    expect(firstPartOf(body.subarray(0, 30), 'multipart/mixed; boundary=B')).toBeNull();
  });
  it('lists directories first, and nothing of nonsense', () => {
    const text = '[{"filename":"b","size":3,"mtime":1,"kind":"file"},{"filename":"z","kind":"directory"}]';
    expect(filesOf(text).map(({ name, isDirectory }) => [name, isDirectory])).toEqual([
      ['z', true],
      ['b', false],
    ]);
    expect(filesOf('nonsense')).toEqual([]);
  });
});

describe('completions', () => {
  it('say where the cursor is', () =>
    expect(cursorOf('a\nfoo.b + 1\nc', 7)).toEqual({ row: 1, col: 5, line: 'foo.b', post: ' + 1\nc' }));
  it('are of names and what is after a dot', () => {
    expect([isCompletable('', 0), isCompletable('a', 0), isCompletable('é', 1), isCompletable('a.', 2)]).toEqual([
      ...[false, false, true, true],
    ]);
    expect(isCompletable('a ', 2)).toBe(false);
  });
  it.each([
    ['x = os.pa', 'os.path', 'th'],
    ['from os import pa', 'path', 'th'],
    ['print(', 'x', 'x'],
    ['aa', 'aab', 'b'],
  ])('of %j by %j add %j', (before, match, rest) => expect(restOf(before, match)).toBe(rest));
});

describe('pages', () => {
  let server: FakeServer;
  beforeEach(() => {
    server = new FakeServer();
    server.install();
    server.graphql('compute_session', () => ({ compute_session: { id: 's1', name: 'mine', status: 'RUNNING' } }));
  });
  it('runs a cell by the keyboard', async () => {
    server.on('POST /func/session/s1', (body) => ({
      body: {
        result: step(
          'finished',
          [
            ['stdout', `ran ${body.code}`],
            ['html', '<b>x</b>'],
          ],
          { exitCode: 0 },
        ),
      },
    }));
    openPage('/sessions/s1/cells', server);
    await userEvent.type(await screen.findByRole('textbox', { name: 'Code of cell 1' }), '1+1{Shift>}{Enter}{/Shift}');
    expect(await screen.findByText('ran 1+1')).toBeDefined();
    const frame = screen.getByTitle('HTML output');
    expect(frame.getAttribute('sandbox')).toBe('');
    expect(screen.getByRole('textbox', { name: 'Code of cell 2' })).toBeDefined();
  });
  it('completes a name by Tab: the only match at once, one of several from a list', async () => {
    let matches = ['os.path', 'os.pardir'];
    server.on('POST /func/session/s1/complete', () => ({ body: { result: matches } }));
    openPage('/sessions/s1/cells', server);
    const field = await screen.findByRole<HTMLTextAreaElement>('textbox', { name: 'Code of cell 1' });
    await userEvent.clear(field);
    await userEvent.type(field, 'x = 1{Enter}{Tab}os.pa{Tab}');
    expect(field.value).toBe('x = 1\n    os.pa');
    const list = await screen.findByRole('listbox', { name: 'Completions' });
    expect(within(list).getByRole('option', { name: 'os.path', selected: true })).toBeDefined();
    await userEvent.keyboard('{ArrowDown}');
    expect(field.getAttribute('aria-activedescendant')).toBe(
      within(list).getByRole('option', { name: 'os.pardir', selected: true }).id,
    );
    await userEvent.keyboard('{Enter}');
    expect(field.value).toBe('x = 1\n    os.pardir');
    expect(screen.queryByRole('listbox')).toBeNull();
    expect(sent('POST /func/session/s1/complete')[0]?.body).toEqual({
      code: 'x = 1\n    os.pa',
      options: { row: 1, col: 9, line: '    os.pa', post: '' },
    });
    matches = ['print'];
    await userEvent.type(field, '{Enter}pri{Tab}');
    await expect.poll(() => field.value).toBe('x = 1\n    os.pardir\nprint');
    matches = [];
    await userEvent.type(field, 'zz{Tab}');
    expect(await screen.findByText('Nothing completes this.')).toBeDefined();
    await userEvent.keyboard('{Escape}{Tab}');
    expect(document.activeElement).not.toBe(field);
  });
  it('forgets the matches of a text that has changed since, and leaves the list by Escape', async () => {
    const answers: (() => void)[] = [];
    server.on('POST /func/session/s1/complete', async () => {
      await new Promise<void>((resolve) => answers.push(resolve));
      return { body: { result: ['print', 'property'] } };
    });
    openPage('/sessions/s1/cells', server);
    const field = await screen.findByRole<HTMLTextAreaElement>('textbox', { name: 'Code of cell 1' });
    await userEvent.clear(field);
    await userEvent.type(field, 'pr{Tab}i');
    await expect.poll(() => answers.length).toBe(1);
    answers[0]?.();
    await userEvent.type(field, '{Tab}');
    await expect.poll(() => answers.length).toBe(2);
    expect(screen.queryByRole('listbox')).toBeNull();
    answers[1]?.();
    await screen.findByRole('listbox');
    await userEvent.keyboard('{Escape}');
    expect(screen.queryByRole('listbox')).toBeNull();
    expect(field.value).toBe('pri');
  });
  it('shows the files of a directory and says what was refused', async () => {
    server.on('GET /func/session/s1/files', (_, request) => ({
      body: {
        files: '[{"filename":"<b>.txt","size":3,"mtime":1,"kind":"file"}]',
        folder_path: new URL(request.url).searchParams.get('path'),
        errors: '',
      },
    }));
    server.on('GET /func/session/s1/download', () => ({ status: 403, body: { title: 'no such right' } }));
    openPage('/sessions/s1/files?path=a', server);
    await userEvent.click(await screen.findByRole('button', { name: 'Download <b>.txt' }));
    expect(await screen.findByText('no such right')).toBeDefined();
  });
  const sent = (key: string) => server.requests.filter((request) => request.key === key);
  async function choose(name: string) {
    await userEvent.click(await screen.findByRole('button', { name: 'More that can be done' }));
    await userEvent.click(await screen.findByRole('menuitem', { name }));
    return screen.findByRole('dialog');
  }
  it('renames a session, with what is refused at the field', async () => {
    const names: (string | null)[] = [];
    server.on('POST /func/session/s1/rename', (_, request) => {
      names.push(new URL(request.url).searchParams.get('name'));
      return names.length === 1
        ? { status: 400, body: { title: 'A name has 4 characters.', data: { name: 'malformed' } } }
        : { status: 204 };
    });
    openPage('/sessions/s1', server);
    const dialog = await choose('Rename');
    const field = within(dialog).getByRole('textbox', { name: 'Name' });
    await userEvent.clear(field);
    await userEvent.type(field, 'a b');
    await userEvent.click(within(dialog).getByRole('button', { name: 'Rename' }));
    await expect.poll(() => field.getAttribute('aria-invalid')).toBe('true');
    expect(within(dialog).getByText('A name has 4 characters.')).toBeDefined();
    await userEvent.clear(field);
    await userEvent.type(field, 'better');
    await userEvent.click(within(dialog).getByRole('button', { name: 'Rename' }));
    await expect.poll(() => screen.queryByRole('dialog')).toBeNull();
    expect(names).toEqual(['a b', 'better']);
  });
  it('restarts one after a question that says what is lost', async () => {
    server.on('PATCH /func/session/s1', () => ({ status: 204 }));
    openPage('/sessions/s1', server);
    const dialog = await choose('Restart');
    expect(dialog.textContent).toContain('Files stay');
    expect(sent('PATCH /func/session/s1')).toHaveLength(0);
    await userEvent.click(within(dialog).getByRole('button', { name: 'Restart' }));
    await expect.poll(() => sent('PATCH /func/session/s1')).toHaveLength(1);
  });
  it('keeps its files as an image, and follows that', async () => {
    const sources: EventTarget[] = [];
    class Source extends EventTarget {
      constructor(readonly url: string) {
        super();
        if (url.includes('task_id=t1')) sources.push(this);
      }
      close(): void {}
    }
    vi.stubGlobal('EventSource', Source);
    server.on('POST /func/session/s1/imagify', () => ({ status: 201, body: { bgtask_id: 't1', path: 'r.io/x:mine' } }));
    openPage('/sessions/s1', server);
    const dialog = await choose('Keep its files');
    await userEvent.click(within(dialog).getByText('Image'));
    await userEvent.click(within(dialog).getByRole('button', { name: 'Keep them' }));
    expect(sent('POST /func/session/s1/imagify')).toHaveLength(0);
    await userEvent.type(within(dialog).getByRole('textbox', { name: 'Name of the image' }), 'mine');
    await userEvent.click(within(dialog).getByRole('button', { name: 'Keep them' }));
    expect(await within(dialog).findByText('It becomes r.io/x:mine.')).toBeDefined();
    expect(sent('POST /func/session/s1/imagify')[0]?.body).toEqual({ image_name: 'mine' });
    sources[0]?.dispatchEvent(new MessageEvent('bgtask_done', { data: '{"message":"pushed"}' }));
    expect(await within(dialog).findByText('The files are kept')).toBeDefined();
  });

  const report = {
    id: 's1',
    name: 'mine',
    status: 'PENDING',
    reason: 'no-available-instances',
    owner: 'ann@example.com',
    trace_id: 'abc123',
    life: [{ at: '2026-01-01T00:00:00Z', name: 'PENDING', details: { kernelId: 'k', tries: 3 } }],
    kernels: [
      { id: 'k1', host: 'main1', agent: 'i-1', status: 'PENDING', attempt: 2, exit_code: null, info: 'it waits' },
    ],
    decision: {
      message: 'needs 4 cpu on one node',
      position: 7,
      agents: { startable: 0, total: 2, excluded: [{ reason: 'busy', count: 2, agents: ['i-1', 'i-2'] }] },
      holders: { count: 1, visible: [{ id: 's9', name: 'greedy' }] },
      limits: [
        { scope: 'keypair', slot: 'cpu', used: '3', requested: '4', limit: '5', is_exceeded: true },
        { scope: 'group', slot: 'cpu', used: '3', requested: '4', limit: '50', is_exceeded: false },
      ],
    },
    errors: ['an image is missing'],
    logs: [
      {
        at: 1.5,
        daemon: 'agent i-1',
        level: 'WARNING',
        logger: 'a',
        message: '<b>slow</b>',
        request_id: null,
        trace_id: null,
      },
    ],
    unreachable: ['i-2'],
  };
  const signInAs = (role: string) =>
    server.on('POST /server/login-check', () => ({
      body: { authenticated: true, data: { access_key: 'AKIATEST', role, status: 'active' } },
    }));
  it('shows an operator all about a session', async () => {
    signInAs('superadmin');
    server.on('GET /func/session/s1/report', () => ({ body: report }));
    openPage('/sessions/s1/report', server);
    expect(await screen.findByText('needs 4 cpu on one node')).toBeDefined();
    for (const text of ['an image is missing', 'greedy', 'tries=3', '<b>slow</b>', 'i-1, i-2', 'it waits', '0 / 2'])
      expect(screen.getByText(text)).toBeDefined();
    expect(screen.getByText('keypair cpu 3 + 4 > 5')).toBeDefined();
    expect(screen.getByText('These agents did not return their logs')).toBeDefined();
  });
  it('says why there is no report, and asks again', async () => {
    signInAs('monitor');
    server.on('GET /func/session/s1/report', () => ({ status: 503, body: { title: 'The database is away.' } }));
    openPage('/sessions/s1/report', server);
    expect(await screen.findByText('The database is away.')).toBeDefined();
    server.on('GET /func/session/s1/report', () => ({ body: { ...report, decision: {} } }));
    await userEvent.click(screen.getByRole('button', { name: 'Try again' }));
    expect(await screen.findByText('an image is missing')).toBeDefined();
    expect(screen.queryByText('Decision of the scheduler')).toBeNull();
  });
  it('asks for no report of a session for others', async () => {
    openPage('/sessions/s1/report', server);
    expect(await screen.findByRole('tab', { name: 'Overview', selected: true })).toBeDefined();
    expect(screen.queryByRole('tab', { name: 'Report' })).toBeNull();
    expect(sent('GET /func/session/s1/report')).toHaveLength(0);
  });
});
