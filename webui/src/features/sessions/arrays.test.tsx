import { screen, within } from '@testing-library/react';
import userEvent from '@testing-library/user-event';
import { beforeEach, describe, expect, it } from 'vitest';
import { openPage } from '../../testing/render';
import { FakeServer } from '../../testing/server';
import { failedOf, hasEnded, type SessionArray } from './arrays';

const array: SessionArray = {
  id: 'a1',
  name: 'sweep',
  accessKey: 'AKIATEST',
  groupName: 'team',
  image: 'python',
  createdAt: '2026-01-01T00:00:00Z',
  maxParallel: 4,
  size: 10,
  status: 'RUNNING',
  counts: { FAILURE: 2, PENDING: 5, SUCCESS: 3 },
};

describe('arrays', () => {
  it.each([
    ['RUNNING', { FAILURE: 2, CANCELLED: 1, SUCCESS: 3 }, 3, false],
    ['SUCCESS', { SUCCESS: 3 }, 0, true],
    ['FAILURE', { ERROR: 1 }, 1, true],
  ])('%s %j', (status, counts, failed, ended) => {
    expect(failedOf({ ...array, counts })).toBe(failed);
    expect(hasEnded({ ...array, status })).toBe(ended);
  });
});

describe('the page of arrays', () => {
  let server: FakeServer;
  const queries: string[] = [];
  beforeEach(() => {
    server = new FakeServer();
    queries.length = 0;
    server.on('GET /func/arrays', (_, request) => {
      queries.push(new URL(request.url).search);
      return { body: { items: [array], totalCount: 21 } };
    });
  });
  const sent = (key: string) => server.requests.filter((request) => request.key === key);
  it('counts the elements, and pages by its address', async () => {
    const { router } = openPage('/sessions/arrays', server);
    expect(await screen.findByText('10: 2 FAILURE, 5 PENDING, 3 SUCCESS')).toBeDefined();
    const link = new URL(screen.getByRole<HTMLAnchorElement>('link', { name: 'sweep' }).href);
    // Elements of other arrays may begin with the same name.
    expect(link.searchParams.get('q')).toContain('array_id == "a1"');
    await userEvent.click(screen.getByRole('button', { name: 'Older' }));
    await expect.poll(() => router.state.location.search).toEqual({ page: 2 });
    await userEvent.click(screen.getByRole('checkbox', { name: 'Also those that have ended' }));
    await expect.poll(() => router.state.location.search).toEqual({ all: true });
    await expect.poll(() => queries.at(-1)).toBe('?limit=20&offset=0');
    expect(queries[0]).toBe('?limit=20&offset=0&live=true');
  });
  it('cancels after a question, and tries again what has failed', async () => {
    server.on('DELETE /func/arrays/a1', (_, request) => ({
      status: 409,
      body: { title: `refused ${new URL(request.url).search}` },
    }));
    server.on('POST /func/arrays/a1/retry', () => ({ body: { array, retried: 2 } }));
    openPage('/sessions/arrays', server);
    await userEvent.click(await screen.findByRole('button', { name: 'End: sweep' }));
    let dialog = await screen.findByRole('dialog', { name: 'End sweep?' });
    await userEvent.click(within(dialog).getByRole('checkbox'));
    expect(sent('DELETE /func/arrays/a1')).toHaveLength(0);
    await userEvent.click(within(dialog).getByRole('button', { name: 'End it' }));
    expect(await within(dialog).findByText('refused ?forced=true')).toBeDefined();
    await userEvent.click(within(dialog).getByRole('button', { name: 'Close' }));
    await expect.poll(() => screen.queryByRole('dialog')).toBeNull();
    await userEvent.click(screen.getByRole('button', { name: 'Try again: sweep' }));
    dialog = await screen.findByRole('dialog', { name: 'Try sweep again?' });
    expect(dialog.textContent).toContain('2 elements');
    await userEvent.click(within(dialog).getByRole('button', { name: 'Try again' }));
    await expect.poll(() => sent('POST /func/arrays/a1/retry')).toHaveLength(1);
    await expect.poll(() => screen.queryByRole('dialog')).toBeNull();
  });
  it('is empty, not loading, where there are none', async () => {
    server.on('GET /func/arrays', () => ({ body: { items: [], totalCount: 0 } }));
    openPage('/sessions/arrays', server);
    expect(await screen.findByText('No array has elements that live')).toBeDefined();
  });
  it('tells a failure with another try', async () => {
    server.on('GET /func/arrays', () => ({ status: 503, body: { title: 'The database is away.' } }));
    openPage('/sessions/arrays', server);
    expect((await screen.findByRole('alert')).textContent).toContain('The database is away.');
  });
});
