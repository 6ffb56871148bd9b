import { MantineProvider } from '@mantine/core';
import { QueryClient, QueryClientProvider } from '@tanstack/react-query';
import { createRootRoute, createRouter, RouterProvider } from '@tanstack/react-router';
import { render, screen } from '@testing-library/react';
import userEvent from '@testing-library/user-event';
import { beforeEach, describe, expect, it, vi } from 'vitest';
import { loadMessages } from '../../../i18n';
import type { Explanation } from '../rules';
import { VerdictLine } from './VerdictLine';

const waits = {
  verdict: 'waits',
  reason: 'insufficient-resource',
  remedy: 'others',
  message: 'needs 4 gpu on one node; most free is 2 on i-1',
  count: 2,
  placed: 1,
  agents: {
    total: 3,
    startable: 0,
    names: [],
    excluded: [
      { reason: 'busy', count: 2, agents: [] },
      { reason: 'unheard-of', count: 1, agents: [] },
    ],
    largest_free: {},
  },
  holders: { count: 3, visible: [{ id: '1', name: '<b>mine</b>', status: 'RUNNING', slots: {} }] },
  limits: [],
  nearest: [{ resources: { gpu: '2' }, cluster_size: 1 }],
} as unknown as Explanation;

function show(explanation: Explanation, onTake = vi.fn()) {
  const client = new QueryClient({ defaultOptions: { queries: { enabled: false } } });
  const root = createRootRoute({
    component: () => <VerdictLine explanation={explanation} isStale={false} onTake={onTake} />,
  });
  render(
    <MantineProvider>
      <QueryClientProvider client={client}>
        <RouterProvider router={createRouter({ routeTree: root }) as never} />
      </QueryClientProvider>
    </MantineProvider>,
  );
  return onTake;
}

describe('a verdict', () => {
  beforeEach(() => loadMessages('launch'));
  it('says that it starts, and where', async () => {
    show({ ...waits, verdict: 'now', agents: { ...waits.agents, total: 12, startable: 3 } } as Explanation);
    expect(await screen.findByText('Starts now')).toBeTruthy();
    expect(screen.getByText('3 of 12 agents could take it')).toBeTruthy();
    expect(screen.queryByRole('button')).toBeNull();
  });

  it('says why it waits, who holds what it lacks, and offers what would start', async () => {
    const onTake = show(waits);
    expect(await screen.findByText(waits.message ?? '')).toBeTruthy();
    expect(screen.getByText('1 of 2 would start now')).toBeTruthy();
    expect(screen.getByRole('link', { name: '<b>mine</b>' })).toBeTruthy();
    expect(screen.getByText(/and 2 sessions of others/)).toBeTruthy();
    expect(screen.getByText(/2 agents:/).textContent).toContain('not enough free');
    expect(screen.getByText(/1 agent:/).textContent).toContain('unheard-of');
    await userEvent.click(screen.getByRole('button', { name: 'Take' }));
    expect(onTake).toHaveBeenCalledWith({ resources: { gpu: '2' }, cluster_size: 1 });
  });
});
