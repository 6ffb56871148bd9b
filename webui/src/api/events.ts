import { apiBase } from './client';

/** An event of a session, as the manager sends it. */
export interface SessionEvent {
  id: string;
  name: string;
  sessionId: string;
  reason: string;
  data: Record<string, unknown>;
}

export type StreamState = 'connecting' | 'open' | 'down';

// EventSource delivers named events only to listeners of that name; these are the manager's.
const shared = ['preparing', 'pulling', 'creating', 'started', 'terminating', 'terminated', 'cancelled'];
const ofSessions = [
  'enqueued',
  'scheduled',
  'prepared',
  'restarting',
  'degraded',
  'success',
  'failure',
  'device_unhealthy',
  'device_recovered',
];
export const eventNames = [
  ...[...shared, ...ofSessions].map((stage) => `session_${stage}`),
  ...shared.map((stage) => `kernel_${stage}`),
];

/** Returns the event of a message; null for a message that is none. */
export function eventFrom(name: string, lastEventId: string, text: string): SessionEvent | null {
  try {
    const data = JSON.parse(text) as Record<string, unknown>;
    if (typeof data.sessionId !== 'string') return null;
    return { id: lastEventId, name, sessionId: data.sessionId, reason: String(data.reason ?? ''), data };
  } catch {
    return null;
  }
}

/** Opens a stream of session events. `after` is the id of the last event that is known. Returns how to close it. */
export function openEvents(
  options: { sessionId?: string; after?: string },
  onEvent: (event: SessionEvent) => void,
  onState: (state: StreamState) => void = () => {},
): () => void {
  const search = new URLSearchParams({ sessionId: options.sessionId ?? '*' });
  if (options.after) search.set('lastEventId', options.after);
  const source = new EventSource(`${apiBase}/events/session?${search}`);
  for (const name of eventNames) {
    source.addEventListener(name, (message) => {
      const event = eventFrom(name, message.lastEventId, String(message.data));
      if (event !== null) onEvent(event);
    });
  }
  source.addEventListener('open', () => onState('open'));
  source.addEventListener('server_close', () => {
    source.close();
    onState('down');
  });
  source.addEventListener('error', () => onState(source.readyState === EventSource.CLOSED ? 'down' : 'connecting'));
  return () => source.close();
}
