import { useQuery } from '@tanstack/react-query';
import { useEffect, useRef, useState } from 'react';
import { send } from '../../../api/client';
import { prefix } from '../../../api/prefix';
import { Problem } from '../../../api/problems';
import { serviceKeys } from '../queries';
import { modelsOf, mostCharacters, type Reader } from './readers';
import type { ServiceCall } from './requests';

/** An answer of a service that arrives. */
export interface Answer<T> {
  state: 'waiting' | 'reading' | 'done' | 'stopped' | 'cut' | 'broken' | 'failed';
  /** Of the service; 0 before it answers. */
  status: number;
  mediaType: string;
  bytes: number;
  ms: number;
  shown: T;
  problem: Problem | null;
}

function request(service: string, call: ServiceCall, signal: AbortSignal): Promise<Response> {
  return send(
    new Request(`${window.location.origin}${prefix}server/services/${encodeURIComponent(service)}/call`, {
      method: 'POST',
      headers: { 'Content-Type': 'application/json' },
      body: JSON.stringify(call),
      signal,
    }),
    false,
  );
}

/** The models that a service names; none where it does not answer such a question. Asked once for a page. */
export function useModels(service: string, isCallable: boolean) {
  return useQuery({
    queryKey: [...serviceKeys.one(service), 'models'],
    queryFn: async ({ signal }) => {
      const response = await request(service, { method: 'GET', path: '/v1/models' }, signal);
      return response.headers.get('X-BackendAI-Endpoint-Status') === '200' ? modelsOf(await response.text()) : [];
    },
    enabled: isCallable,
    retry: false,
    staleTime: 60_000,
  });
}

/**
 * Calls a service, one call at a time, and reads its answer as it arrives.
 *
 * Whoever stops the call, or leaves the page, ends the connection, and so what the service does for it.
 */
export function useCall<T>(service: string) {
  const [answer, setAnswer] = useState<Answer<T> | null>(null);
  const running = useRef<AbortController | null>(null);
  useEffect(() => () => running.current?.abort(), []);

  const start = async (call: ServiceCall, reader: Reader<T>): Promise<Answer<T>> => {
    running.current?.abort();
    const controller = new AbortController();
    running.current = controller;
    const begun = performance.now();
    const ms = () => performance.now() - begun;
    let now: Answer<T> = {
      state: 'waiting',
      status: 0,
      mediaType: '',
      bytes: 0,
      ms: 0,
      shown: reader.view(),
      problem: null,
    };
    const tell = (part: Partial<Answer<T>>) => {
      now = { ...now, ...part, shown: reader.view(), ms: ms() };
      if (running.current === controller) setAnswer(now);
    };
    tell({});
    try {
      const response = await request(service, call, controller.signal);
      const status = Number(response.headers.get('X-BackendAI-Endpoint-Status') ?? 0);
      const mediaType = response.headers.get('X-BackendAI-Endpoint-Type') ?? '';
      reader.begin(status, mediaType);
      tell({ state: 'reading', status, mediaType });
      const decoder = new TextDecoder();
      let characters = 0;
      for await (const piece of piecesOf(response)) {
        const text = decoder.decode(piece, { stream: true });
        characters += text.length;
        reader.feed(text, ms());
        tell({ bytes: now.bytes + piece.length });
        if (characters > mostCharacters) {
          tell({ state: 'cut' });
          controller.abort();
          return now;
        }
      }
      reader.end();
      tell({ state: 'done' });
    } catch (error) {
      if (controller.signal.aborted) tell({ state: 'stopped' });
      else if (error instanceof Problem) tell({ state: 'failed', problem: error });
      else tell({ state: 'broken' });
    }
    return now;
  };

  return {
    answer,
    isRunning: answer?.state === 'waiting' || answer?.state === 'reading',
    start,
    stop: () => running.current?.abort(),
    clear: () => {
      running.current?.abort();
      running.current = null;
      setAnswer(null);
    },
  };
}

async function* piecesOf(response: Response): AsyncGenerator<Uint8Array> {
  const reader = response.body?.getReader();
  if (reader === undefined) return;
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      yield value;
    }
  } finally {
    reader.releaseLock();
  }
}
