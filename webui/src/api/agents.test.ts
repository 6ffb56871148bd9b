import { QueryClient } from '@tanstack/react-query';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { agentEventFrom, followAgents, liveAgents } from './agents';

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
  tell(name: string, id: string, data: unknown): void {
    this.dispatchEvent(new MessageEvent(name, { data: JSON.stringify(data), lastEventId: id }));
  }
}

let client: QueryClient;
let stale: string[];
let end: () => void;

beforeEach(() => {
  vi.useFakeTimers();
  ToldEventSource.opened = [];
  vi.stubGlobal('EventSource', ToldEventSource);
  client = new QueryClient();
  stale = [];
  vi.spyOn(client, 'invalidateQueries').mockImplementation(async (filters) => {
    stale.push((filters?.queryKey ?? []).join(' '));
  });
  end = followAgents(client);
});
afterEach(() => {
  end();
  vi.useRealTimers();
});

describe('agentEventFrom', () => {
  it('reads changes and refuses what is none', () => {
    expect(agentEventFrom('agent_changed', 'r-4', '{"agentId":"i-1","changed":["status"]}')).toEqual({
      id: 'r-4',
      agentId: 'i-1',
    });
    expect(agentEventFrom('agents_reset', 'r-0', '{}')).toEqual({ id: 'r-0', agentId: null });
    expect(agentEventFrom('agent_changed', 'r-4', '{"agentId":7}')).toBeNull();
    expect(agentEventFrom('agent_changed', 'r-4', 'no JSON')).toBeNull();
  });
});

describe('followAgents', () => {
  it('marks the agents of a burst once each, and the fleet once in two seconds', () => {
    const [source] = ToldEventSource.opened;
    for (const [id, agentId] of [
      ['r-1', 'i-1'],
      ['r-2', 'i-2'],
      ['r-3', 'i-1'],
    ] as const)
      source?.tell('agent_changed', id, { agentId });
    vi.advanceTimersByTime(300);
    expect(stale).toEqual(['agent i-1', 'agent i-2', 'fleet']);
    source?.tell('agent_changed', 'r-4', { agentId: 'i-2' });
    vi.advanceTimersByTime(300);
    expect(stale.slice(3)).toEqual(['agent i-2']);
    vi.advanceTimersByTime(2_000);
    expect(stale.slice(4)).toEqual(['fleet']);
  });

  it('reads everything where changes were missed, and resumes after the last event', () => {
    const [source] = ToldEventSource.opened;
    source?.tell('agents_reset', 'run-7', {});
    vi.advanceTimersByTime(300);
    expect(stale).toEqual(['agent', 'fleet']);
    source?.close();
    source?.dispatchEvent(new Event('error'));
    expect(liveAgents.state()).toBe('down');
    vi.advanceTimersByTime(1_000);
    expect(ToldEventSource.opened[1]?.url).toContain('lastEventId=run-7');
  });
});
