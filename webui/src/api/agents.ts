import { type QueryClient, useQueryClient } from '@tanstack/react-query';
import { useEffect, useSyncExternalStore } from 'react';
import { apiBase } from './client';
import { readStream } from './events';
import { keys } from './keys';
import { LiveEvents } from './live';

/** What changed of an agent; null: anything may have, so everything is read anew. */
export interface AgentEvent {
  id: string;
  agentId: string | null;
}

const fleetMs = 2_000;
const withoutStreamMs = 15_000;

/** Returns the event of a message; null for a message that is none. */
export function agentEventFrom(name: string, lastEventId: string, text: string): AgentEvent | null {
  if (name === 'agents_reset') return { id: lastEventId, agentId: null };
  try {
    const { agentId } = JSON.parse(text) as { agentId?: unknown };
    return typeof agentId === 'string' ? { id: lastEventId, agentId } : null;
  } catch {
    return null;
  }
}

/** The changes of all agents, for those who see agents. */
export const liveAgents = new LiveEvents<AgentEvent>('backendai-agents', (after, listener) => {
  const search = after === '' ? '' : `?${new URLSearchParams({ lastEventId: after })}`;
  return readStream(`${apiBase}/events/agent${search}`, ['agents_reset', 'agent_changed'], agentEventFrom, listener);
});

/** Marks as out of date what events are about: an agent at once, the fleet at most every two seconds. */
export function followAgents(client: QueryClient, events: LiveEvents<AgentEvent> = liveAgents): () => void {
  let timer: ReturnType<typeof setTimeout> | undefined;
  let lastAt = 0;
  const refreshFleet = () => {
    timer = undefined;
    lastAt = Date.now();
    void client.invalidateQueries({ queryKey: keys.fleet });
  };
  const unsubscribe = events.subscribe((changes) => {
    const ids = new Set(changes.map(({ agentId }) => agentId));
    if (ids.has(null)) void client.invalidateQueries({ queryKey: keys.agents });
    else for (const id of ids) void client.invalidateQueries({ queryKey: [...keys.agents, id], exact: true });
    timer ??= setTimeout(refreshFleet, Math.max(0, lastAt + fleetMs - Date.now()));
  });
  return () => {
    unsubscribe();
    clearTimeout(timer);
  };
}

/** Follows the changes of agents while a page is open. Returns how often it asks by itself: never while events come. */
export function useLiveAgents(): number | false {
  const client = useQueryClient();
  useEffect(() => followAgents(client), [client]);
  const state = useSyncExternalStore(liveAgents.subscribeState, liveAgents.state);
  return state === 'open' ? false : withoutStreamMs;
}
