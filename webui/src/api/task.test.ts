import { act, renderHook } from '@testing-library/react';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { useTask } from './task';

class FakeEventSource extends EventTarget {
  static readonly CLOSED = 2;
  static last: FakeEventSource;
  readyState = 1;
  constructor(readonly url: string) {
    super();
    FakeEventSource.last = this;
  }
  close(): void {
    this.readyState = FakeEventSource.CLOSED;
  }
  say(name: string, data: object = {}): void {
    act(() => {
      this.dispatchEvent(new MessageEvent(name, { data: JSON.stringify(data) }));
    });
  }
}

describe('useTask', () => {
  const silent = EventSource;
  const onEnd = vi.fn();
  beforeEach(() => {
    onEnd.mockClear();
    vi.stubGlobal('EventSource', FakeEventSource);
  });
  afterEach(() => void vi.stubGlobal('EventSource', silent));
  const start = () => {
    const { result } = renderHook(() => useTask('t1', onEnd));
    return { result, source: FakeEventSource.last };
  };

  it('ends with the task, also when the server then closes the stream', () => {
    const { result, source } = start();
    source.say('bgtask_updated', { current_progress: 1, total_progress: 2, message: 'half' });
    expect(result.current).toEqual({ state: 'running', part: 0.5, message: 'half' });
    source.say('bgtask_done', { message: 'all' });
    source.say('server_close');
    expect(result.current).toMatchObject({ state: 'done', message: 'all' });
    expect(onEnd).toHaveBeenCalledTimes(1);
  });
  it('runs no more for those who wait where the stream is refused', () => {
    const { result, source } = start();
    source.close();
    source.say('error');
    expect(result.current?.state).toBe('lost');
    expect(onEnd).toHaveBeenCalledTimes(1);
  });
  it('runs no more where the server closes the stream without an end', () => {
    const { result, source } = start();
    source.say('bgtask_updated', { message: 'half' });
    source.say('server_close');
    expect(result.current).toEqual({ state: 'lost', part: null, message: 'half' });
    expect(source.readyState).toBe(FakeEventSource.CLOSED);
    expect(onEnd).toHaveBeenCalledTimes(1);
  });
  it('waits while the browser connects again', () => {
    const { result, source } = start();
    source.readyState = 0;
    source.say('error');
    expect(result.current?.state).toBe('running');
    expect(onEnd).not.toHaveBeenCalled();
  });
});
