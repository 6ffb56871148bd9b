import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { openEvents, type SessionEvent } from './events';
import { LiveEvents, retryDelay } from './live';

class ToldEventSource extends EventTarget {
  static readonly CLOSED = 2;
  static opened: ToldEventSource[] = [];
  readyState = 1;
  constructor(readonly url: string) {
    super();
    ToldEventSource.opened.push(this);
  }
  close(): void {
    this.readyState = ToldEventSource.CLOSED;
  }
  tell(name: string, id: string, sessionId: string): void {
    this.dispatchEvent(new MessageEvent(name, { data: JSON.stringify({ sessionId }), lastEventId: id }));
  }
  refuse(): void {
    this.readyState = ToldEventSource.CLOSED;
    this.dispatchEvent(new Event('error'));
  }
}

const ofSessions = () => new LiveEvents<SessionEvent>('test-events', openEvents);

beforeEach(() => {
  vi.useFakeTimers();
  ToldEventSource.opened = [];
  vi.stubGlobal('EventSource', ToldEventSource);
});
afterEach(() => {
  vi.useRealTimers();
});

describe('retryDelay', () => {
  it('doubles up to half a minute', () => {
    expect([0, 1, 2, 9].map((failures) => retryDelay(failures, () => 1))).toEqual([1000, 2000, 4000, 30_000]);
  });
});

describe('LiveEvents', () => {
  it('joins a burst', () => {
    const live = ofSessions();
    const bursts: string[][] = [];
    const end = live.subscribe((events) => bursts.push(events.map(({ sessionId }) => sessionId)));
    const [source] = ToldEventSource.opened;
    source?.tell('session_started', '4', 'a');
    source?.tell('session_terminated', '5', 'b');
    vi.advanceTimersByTime(300);
    source?.tell('session_started', '6', 'c');
    vi.advanceTimersByTime(300);
    expect(bursts).toEqual([['a', 'b'], ['c']]);
    end();
  });
  it('opens another stream after the last event when one is refused', () => {
    const live = ofSessions();
    const end = live.subscribe(() => undefined);
    ToldEventSource.opened[0]?.tell('session_started', '41', 'a');
    ToldEventSource.opened[0]?.refuse();
    expect(live.state()).toBe('down');
    vi.advanceTimersByTime(1000);
    expect(ToldEventSource.opened[1]?.url).toContain('lastEventId=41');
    end();
    expect(ToldEventSource.opened[1]?.readyState).toBe(ToldEventSource.CLOSED);
  });
  it('resumes where its stream began when that ends before the first event', () => {
    const live = ofSessions();
    const bursts: unknown[] = [];
    const end = live.subscribe((events) => bursts.push(events));
    expect(ToldEventSource.opened[0]?.url).toContain('lastEventId=now');
    ToldEventSource.opened[0]?.dispatchEvent(new MessageEvent('stream_position', { data: '{}', lastEventId: '7' }));
    ToldEventSource.opened[0]?.refuse();
    vi.advanceTimersByTime(1000);
    expect(ToldEventSource.opened[1]?.url).toContain('lastEventId=7');
    expect(bursts).toEqual([]);
    end();
  });
  it('gives a new tab the position of the stream', () => {
    const posted: unknown[] = [];
    let tell: (data: unknown) => void = () => undefined;
    vi.stubGlobal(
      'BroadcastChannel',
      class {
        postMessage(message: unknown): void {
          posted.push(message);
        }
        addEventListener(_: string, listener: (message: { data: unknown }) => void): void {
          tell = (data) => listener({ data });
        }
        removeEventListener(): void {}
      },
    );
    const live = ofSessions();
    const end = live.subscribe(() => undefined);
    expect(posted).toEqual([{ kind: 'question' }]);
    tell({ kind: 'position', id: '9' });
    tell({ kind: 'question' });
    expect(posted.at(-1)).toEqual({ kind: 'position', id: '9' });
    ToldEventSource.opened[0]?.refuse();
    vi.advanceTimersByTime(1000);
    expect(ToldEventSource.opened[1]?.url).toContain('lastEventId=9');
    end();
    vi.unstubAllGlobals();
  });
  it('has no stream while nobody listens', () => {
    const live = ofSessions();
    live.subscribe(() => undefined)();
    expect(ToldEventSource.opened.map(({ readyState }) => readyState)).toEqual([ToldEventSource.CLOSED]);
    vi.advanceTimersByTime(120_000);
    expect(ToldEventSource.opened).toHaveLength(1);
  });
});
