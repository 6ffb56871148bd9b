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

const ofSessions = () =>
  new LiveEvents<SessionEvent>('test-events', (after, onEvent, onState) => openEvents({ after }, onEvent, onState));

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
  it('has no stream while nobody listens', () => {
    const live = ofSessions();
    live.subscribe(() => undefined)();
    expect(ToldEventSource.opened.map(({ readyState }) => readyState)).toEqual([ToldEventSource.CLOSED]);
    vi.advanceTimersByTime(120_000);
    expect(ToldEventSource.opened).toHaveLength(1);
  });
});
