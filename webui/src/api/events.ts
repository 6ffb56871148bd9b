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

/** Who listens to a stream. */
export interface StreamListener<E> {
  onEvent: (event: E) => void;
  onState: (state: StreamState) => void;
  /** Is called with an id to resume after where no event has brought one. */
  onPosition: (id: string) => void;
}

/** Opens a stream of events after the one with an id, empty for none. Returns how to close it. */
export type OpenStream<E> = (after: string, listener: StreamListener<E>) => () => void;

/** Reads a stream of the manager: what `read` makes of the messages of these names. Returns how to close it. */
export function readStream<E>(
  address: string,
  names: readonly string[],
  read: (name: string, lastEventId: string, text: string) => E | null,
  { onEvent, onState, onPosition }: StreamListener<E>,
): () => void {
  const source = new EventSource(address);
  for (const name of names) {
    source.addEventListener(name, (message) => {
      const event = read(name, message.lastEventId, String(message.data));
      if (event !== null) onEvent(event);
    });
  }
  source.addEventListener('stream_position', (message) => onPosition(message.lastEventId));
  source.addEventListener('open', () => onState('open'));
  source.addEventListener('server_close', () => {
    source.close();
    onState('down');
  });
  source.addEventListener('error', () => onState(source.readyState === EventSource.CLOSED ? 'down' : 'connecting'));
  return () => source.close();
}

/** Opens the stream of session events after the one with an id; empty: from now on. Returns how to close it. */
export function openEvents(after: string, listener: StreamListener<SessionEvent>): () => void {
  const search = new URLSearchParams({ sessionId: '*', lastEventId: after || 'now' });
  return readStream(`${apiBase}/events/session?${search}`, eventNames, eventFrom, listener);
}
