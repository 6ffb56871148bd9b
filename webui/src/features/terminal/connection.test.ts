import { beforeEach, describe, expect, it, vi } from 'vitest';
import { type ConnectionState, TerminalConnection } from './connection';
import { delayBefore, excerpt, fromBase64, lineCount, pastedText, readMessage, toBase64 } from './rules';

class FakeSocket {
  static opened: FakeSocket[] = [];
  readyState: number = WebSocket.CONNECTING;
  sent: { type: string; chars?: string; rows?: number; cols?: number }[] = [];
  onopen: (() => void) | null = null;
  onmessage: ((event: { data: unknown }) => void) | null = null;
  onclose: ((event: { code: number }) => void) | null = null;
  constructor() {
    FakeSocket.opened.push(this);
  }
  accept() {
    this.readyState = WebSocket.OPEN;
    this.onopen?.();
  }
  send(text: string) {
    this.sent.push(JSON.parse(text));
  }
  close() {
    this.drop(1005);
  }
  drop(code: number) {
    this.readyState = WebSocket.CLOSED;
    this.onclose?.({ code });
  }
}

function connect(mayRetry = true) {
  const states: ConnectionState[] = [];
  const output: Uint8Array[] = [];
  const errors: string[] = [];
  const connection = new TerminalConnection({
    url: () => 'ws://host/pty',
    onOutput: (bytes) => output.push(bytes),
    onError: (text) => errors.push(text),
    onState: (state) => states.push(state),
    mayRetry: () => Promise.resolve(mayRetry),
    open: () => new FakeSocket() as unknown as WebSocket,
  });
  connection.start();
  return { connection, states, output, errors, socket: () => FakeSocket.opened.at(-1) as FakeSocket };
}

describe('TerminalConnection', () => {
  beforeEach(() => {
    FakeSocket.opened = [];
    vi.useFakeTimers();
    return () => vi.useRealTimers();
  });

  it('tells the size first, and types bytes as they are', () => {
    const { connection, socket } = connect();
    connection.resize(40, 120);
    connection.type('dropped');
    socket().accept();
    connection.type('한\r');
    expect(socket().sent[0]).toEqual({ type: 'resize', rows: 40, cols: 120 });
    expect(new TextDecoder().decode(fromBase64(socket().sent[1]?.chars ?? ''))).toBe('한\r');
    expect(socket().sent).toHaveLength(2);
  });

  it('connects again after a lost connection, not after the end of the shell', async () => {
    const { connection, states, socket } = connect();
    socket().accept();
    socket().drop(1006);
    await vi.advanceTimersByTimeAsync(20_000);
    expect(FakeSocket.opened).toHaveLength(2);
    socket().accept();
    socket().drop(1000);
    await vi.advanceTimersByTimeAsync(20_000);
    expect(FakeSocket.opened).toHaveLength(2);
    expect(states).toEqual(['connecting', 'open', 'waiting', 'connecting', 'open', 'ended']);
    connection.start();
    expect(FakeSocket.opened).toHaveLength(3);
  });

  it('stops where no attempt can succeed', async () => {
    const { states, socket } = connect(false);
    socket().drop(1006);
    await vi.advanceTimersByTimeAsync(60_000);
    expect(FakeSocket.opened).toHaveLength(1);
    expect(states.at(-1)).toBe('stopped');
  });

  it('is silent after it was stopped', async () => {
    const { connection, states, socket } = connect();
    const first = socket();
    first.accept();
    connection.stop();
    first.drop(1006);
    await vi.advanceTimersByTimeAsync(60_000);
    expect(FakeSocket.opened).toHaveLength(1);
    expect(states).toEqual(['connecting', 'open']);
  });

  it('survives frames that are none', () => {
    const { output, errors, socket } = connect();
    for (const data of [
      '{',
      'null',
      '[]',
      '{"type":"out"}',
      '{"type":"out","data":"*"}',
      new ArrayBuffer(1),
      '{"type":"new","data":""}',
    ]) {
      socket().onmessage?.({ data });
    }
    socket().onmessage?.({ data: JSON.stringify({ type: 'out', data: btoa('ok') }) });
    socket().onmessage?.({ data: JSON.stringify({ type: 'error', data: 'busy' }) });
    expect(output.map((bytes) => new TextDecoder().decode(bytes))).toEqual(['ok']);
    expect(errors).toEqual(['busy']);
  });
});

describe('rules', () => {
  it('waits longer each time, within bounds', () => {
    expect(delayBefore(0, () => 1)).toBe(500);
    expect(delayBefore(3, () => 0)).toBe(2000);
    expect(delayBefore(100, () => 1)).toBe(10_000);
  });

  it('encodes megabytes', () => {
    const bytes = Uint8Array.from({ length: 1_000_000 }, (_, index) => index % 256);
    expect(fromBase64(toBase64(bytes))).toEqual(bytes);
    expect(readMessage(JSON.stringify({ type: 'out', data: toBase64(bytes) }))).toEqual({ kind: 'output', bytes });
  });

  it('counts and shortens pasted lines', () => {
    expect(lineCount('a\nb\r\nc\r')).toBe(3);
    expect(excerpt('a\nb')).toBe('a\nb');
    expect(excerpt('x\n'.repeat(100)).split('\n')).toHaveLength(9);
  });
});

describe('pasted text', () => {
  it('ends no brackets of the shell and has nothing that nobody sees', () => {
    expect(pastedText('ls\u001b[201~; rm -rf ~\r')).toBe('ls[201~; rm -rf ~\r');
    expect(pastedText('a\u0003\u0004\u007f\u009b201~b\tc\r\nd — 한글 🙂')).toBe('a201~b\tc\r\nd — 한글 🙂');
  });
});
