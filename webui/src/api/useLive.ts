import { useQueryClient } from '@tanstack/react-query';
import { useEffect, useSyncExternalStore } from 'react';
import type { StreamState } from './events';
import { keys } from './keys';
import { live } from './live';

const listMs = 2_000;

/**
 * Marks what is on screen as out of date when an event says so: a session at once, lists at most every two seconds.
 */
export function useLive(): void {
  const client = useQueryClient();
  useEffect(() => {
    let timer: ReturnType<typeof setTimeout> | undefined;
    let lastAt = 0;
    const refreshLists = () => {
      timer = undefined;
      lastAt = Date.now();
      for (const queryKey of [keys.sessions, ['quota'], keys.managerStatus])
        void client.invalidateQueries({ queryKey });
    };
    const unsubscribe = live.subscribe((events) => {
      for (const id of new Set(events.map((event) => event.sessionId))) {
        void client.invalidateQueries({ queryKey: keys.session(id) });
      }
      timer ??= setTimeout(refreshLists, Math.max(0, lastAt + listMs - Date.now()));
    });
    return () => {
      unsubscribe();
      clearTimeout(timer);
    };
  }, [client]);
}

/** Returns the state of the event stream. */
export function useStreamState(): StreamState {
  return useSyncExternalStore(live.subscribeState, live.state);
}

/** How often a list asks by itself: never while events come, every 15 seconds or so while they do not. */
export function usePollInterval(): number | false {
  return useStreamState() === 'open' ? false : 15_000;
}
