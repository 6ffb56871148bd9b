import { useEffect, useState } from 'react';
import { apiBase } from '../../api/client';

/** How far a trial is. `message` is the sentence of the manager. */
export interface Trial {
  state: 'running' | 'done' | 'failed' | 'lost';
  step: number;
  steps: number;
  message: string;
}

const states = {
  bgtask_updated: 'running',
  bgtask_done: 'done',
  bgtask_failed: 'failed',
  bgtask_cancelled: 'failed',
} as const;

/** Returns the state that an event tells; null for a message that is none. */
export function trialFrom(name: keyof typeof states, text: string): Trial | null {
  try {
    const data = JSON.parse(text) as Record<string, unknown>;
    return {
      state: states[name],
      step: Number(data.current_progress) || 0,
      steps: Number(data.total_progress) || 0,
      message: typeof data.message === 'string' ? data.message : '',
    };
  } catch {
    return null;
  }
}

/** Follows the task of a trial until its end, or until its page is left; null before its first event. */
export function useTrial(taskId: string | undefined): Trial | null {
  const [trial, setTrial] = useState<Trial | null>(null);
  useEffect(() => {
    setTrial(null);
    if (taskId === undefined) return;
    const source = new EventSource(`${apiBase}/events/background-task?${new URLSearchParams({ task_id: taskId })}`);
    for (const name of Object.keys(states) as (keyof typeof states)[]) {
      source.addEventListener(name, (message) => {
        const next = trialFrom(name, String(message.data));
        if (next === null) return;
        setTrial(next);
        if (next.state !== 'running') source.close();
      });
    }
    source.addEventListener('server_close', () => source.close());
    source.addEventListener('error', () => {
      if (source.readyState === EventSource.CLOSED) {
        setTrial((before) => ({ step: 0, steps: 0, message: '', ...before, state: 'lost' }));
      }
    });
    return () => source.close();
  }, [taskId]);
  return trial;
}
