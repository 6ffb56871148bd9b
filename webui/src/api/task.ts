import { useEffect, useState } from 'react';
import { apiBase } from './client';

export interface TaskState {
  /** `lost` where the task may go on, but its events come no more. */
  state: 'running' | 'done' | 'failed' | 'lost';
  /** How far it is, 0 to 1; null where it does not say. */
  part: number | null;
  message: string;
}

const states: Record<string, TaskState['state']> = {
  bgtask_updated: 'running',
  bgtask_done: 'done',
  bgtask_failed: 'failed',
  bgtask_cancelled: 'failed',
};

/** Returns what a message of a background task says; null for a message that is none. */
export function taskStateOf(name: string, text: string): TaskState | null {
  try {
    const data = JSON.parse(text) as Record<string, unknown>;
    const total = Number(data.total_progress);
    return {
      state: states[name] ?? 'running',
      part: total > 0 ? Math.min(1, Number(data.current_progress) / total) : null,
      message: String(data.message ?? ''),
    };
  } catch {
    return null;
  }
}

/** Follows a background task by its events until it ends or they come no more; `onEnd` is called once. An empty id follows none. */
export function useTask(id: string, onEnd: () => void): TaskState | null {
  const [state, setState] = useState<TaskState | null>(null);
  // biome-ignore lint/correctness/useExhaustiveDependencies: another function of the same task opens no other stream
  useEffect(() => {
    setState(id === '' ? null : { state: 'running', part: null, message: '' });
    if (id === '') return;
    const source = new EventSource(`${apiBase}/events/background-task?${new URLSearchParams({ task_id: id })}`);
    let isFollowed = true;
    const end = () => {
      if (!isFollowed) return;
      isFollowed = false;
      source.close();
      onEnd();
    };
    const lose = () => {
      if (isFollowed) setState((before) => ({ part: null, message: '', ...before, state: 'lost' }));
      end();
    };
    for (const name of Object.keys(states)) {
      source.addEventListener(name, (message) => {
        const next = taskStateOf(name, String((message as MessageEvent).data));
        if (next === null || !isFollowed) return;
        setState(next);
        if (next.state !== 'running') end();
      });
    }
    source.addEventListener('server_close', lose);
    source.addEventListener('error', () => {
      // After a broken connection the browser connects again by itself; after a refusal it does not.
      if (source.readyState === EventSource.CLOSED) lose();
    });
    return () => {
      isFollowed = false;
      source.close();
    };
  }, [id]);
  return state;
}
