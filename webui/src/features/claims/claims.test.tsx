import { screen, within } from '@testing-library/react';
import userEvent from '@testing-library/user-event';
import { beforeEach, describe, expect, it } from 'vitest';
import { openPage } from '../../testing/render';
import { FakeServer } from '../../testing/server';
import { acceleratorsOf, type Claim, type Draft, devicesOf, faultsOf, isReleasable, newClaimOf, toneOf } from './rules';

const claim = (other: Partial<Claim> = {}): Claim => ({
  id: 'c1',
  name: 'mine',
  status: 'IDLE',
  status_info: null,
  problem: '',
  is_deleting: false,
  user_email: 'ann@example.com',
  access_key: 'A',
  domain_name: 'default',
  group_name: 'team',
  scaling_group: 'gpus',
  requested_slots: { 'cuda.device': '2' },
  occupied_slots: {},
  device_requests: [],
  devices: { 'cuda.device': { 'GPU-1': '1', 'GPU-0': '1' } },
  agent: null,
  sessions: [],
  idle_timeout: 7200,
  idle_since: '2026-01-01T00:00:00Z',
  allocated_at: '2026-01-01T00:00:00Z',
  created_at: '2026-01-01T00:00:00Z',
  ...other,
});
const draft = (other: Partial<Draft>): Draft => ({
  name: 'mine',
  resources: 'cuda.device=2',
  requests: '',
  idleTimeout: '',
  project: '',
  group: '',
  ...other,
});

describe('rules', () => {
  it('say what a claim holds and what can be done', () => {
    expect(devicesOf(claim())).toEqual(['GPU-0', 'GPU-1']);
    expect(['IDLE', 'IN_USE', 'UNALLOCATED'].map((status) => isReleasable({ status }))).toEqual([true, false, false]);
    expect([toneOf(claim()), toneOf(claim({ problem: 'drained' })), toneOf(claim({ status: 'X' }))]).toEqual([
      'wait',
      'bad',
      'idle',
    ]);
    expect(acceleratorsOf(['mem', 'rocm.device', 'cpu', 'cuda.device'])).toEqual(['cuda.device', 'rocm.device']);
  });
  it.each<[Partial<Draft>, string[]]>([
    [{}, []],
    [{ name: 'a b' }, ['name']],
    [{ resources: '' }, ['resources']],
    [{ resources: 'cpu=1' }, ['resources']],
    [{ resources: 'nonsense' }, ['resources']],
    [{ resources: '', requests: 'cuda.device=1' }, []],
    [{ requests: 'x\n'.repeat(9) }, ['requests']],
    [{ idleTimeout: 'soon' }, ['idleTimeout']],
    [{ idleTimeout: '0' }, []],
  ])('find the faults of %j', (other, faults) => expect([...faultsOf(draft(other))]).toEqual(faults));
  it('send what was written, and leave the rest to the server', () => {
    expect(newClaimOf(draft({}), '')).toEqual({ name: 'mine', resources: { 'cuda.device': '2' } });
    expect(
      newClaimOf(draft({ requests: ' a \n\nb', idleTimeout: '2h', project: 'team', group: 'gpus' }), 'default'),
    ).toEqual({
      name: 'mine',
      resources: { 'cuda.device': '2' },
      device_requests: ['a', 'b'],
      idle_timeout: 7200,
      domain: 'default',
      group: 'team',
      scaling_group: 'gpus',
    });
  });
});

describe('the page', () => {
  let server: FakeServer;
  let claims: Claim[];
  beforeEach(() => {
    server = new FakeServer();
    claims = [claim()];
    server.on('GET /func/claims', () => ({ body: { items: claims, total_count: claims.length } }));
    server.on('GET /func/claims/c1', () => ({ body: claims[0] }));
    server.on('GET /func/scaling-groups', () => ({ body: { scaling_groups: [{ name: 'gpus' }] } }));
  });
  const sent = (key: string) => server.requests.filter((request) => request.key === key).map(({ body }) => body);

  it('asks the server for its page, and shows one with its sessions and its problem', async () => {
    let asked = '';
    claims = [
      claim({
        status: 'IN_USE',
        problem: 'the device GPU-0 is drained',
        agent: 'i-node1',
        sessions: [{ id: 's1', name: 'training', status: 'RUNNING' }],
      }),
    ];
    server.on('GET /func/claims', (_, request) => {
      asked = new URL(request.url).search;
      return { body: { items: claims, total_count: 60 } };
    });
    openPage('/claims?page=2&show=c1', server);
    const card = await screen.findByRole('region', { name: 'mine' });
    expect(asked).toBe('?limit=25&offset=25');
    expect((await within(card).findByRole('link', { name: 'training' })).getAttribute('href')).toBe('/sessions/s1');
    for (const text of ['the device GPU-0 is drained', 'i-node1', 'GPU-0, GPU-1', '2h'])
      expect(within(card).getByText(text)).toBeDefined();
    expect(within(card).queryByRole('button', { name: 'Release' })).toBeNull();
    expect(screen.getByRole('button', { name: 'Page 3 of claims' })).toBeDefined();
  });
  it('makes one after what is wrong was said, and opens it', async () => {
    claims = [];
    server.on('POST /func/claims', (body) => {
      if (body.name === 'taken') return { status: 409, body: { title: 'There is a claim of this name.' } };
      claims = [claim({ status: 'UNALLOCATED', devices: {} })];
      return { status: 201, body: claims[0] };
    });
    openPage('/claims', server);
    expect(await screen.findByText('There are no device claims')).toBeDefined();
    await userEvent.click(screen.getByRole('button', { name: 'New claim' }));
    const dialog = await screen.findByRole('dialog', { name: 'New claim' });
    const create = within(dialog).getByRole('button', { name: 'Create' });
    await userEvent.click(create);
    expect(within(dialog).getByText(/1 to 64 letters/)).toBeDefined();
    expect(sent('POST /func/claims')).toEqual([]);
    const name = within(dialog).getByRole('textbox', { name: 'Name' });
    await userEvent.type(name, 'taken');
    await userEvent.type(within(dialog).getByRole('textbox', { name: 'Accelerators' }), 'cuda.device=2');
    await within(dialog).findByRole('combobox', { name: 'Resource group' });
    await userEvent.click(create);
    expect(await within(dialog).findByText('There is a claim of this name.')).toBeDefined();
    await userEvent.clear(name);
    await userEvent.type(name, 'mine');
    await userEvent.click(create);
    expect(await screen.findByRole('region', { name: 'mine' })).toBeDefined();
    expect(sent('POST /func/claims').at(-1)).toEqual({
      name: 'mine',
      resources: { 'cuda.device': '2' },
      domain: 'default',
      group: 'team',
      scaling_group: 'gpus',
    });
  });
  it('releases devices after saying which', async () => {
    server.on('POST /func/claims/c1/release', () => {
      claims = [claim({ status: 'UNALLOCATED', devices: {} })];
      return { body: claims[0] };
    });
    openPage('/claims?show=c1', server);
    const card = await screen.findByRole('region', { name: 'mine' });
    await userEvent.click(await within(card).findByRole('button', { name: 'Release' }));
    const dialog = await screen.findByRole('dialog', { name: 'Release the devices of mine?' });
    expect(dialog.textContent).toContain('GPU-0, GPU-1');
    await userEvent.click(within(dialog).getByRole('button', { name: 'Release' }));
    expect(await within(card).findByText('Holds nothing')).toBeDefined();
    expect(within(card).queryByRole('button', { name: 'Release' })).toBeNull();
  });
  it('deletes one whose name was typed, and says that sessions keep it until they end', async () => {
    claims = [claim({ status: 'IN_USE', sessions: [{ id: 's1', name: 'training', status: 'RUNNING' }] })];
    server.on('DELETE /func/claims/c1', () => {
      claims = [claim({ ...claims[0], is_deleting: true })];
      return { body: claims[0] };
    });
    openPage('/claims?show=c1', server);
    const card = await screen.findByRole('region', { name: 'mine' });
    await userEvent.click(await within(card).findByRole('button', { name: 'Delete' }));
    const dialog = await screen.findByRole('dialog', { name: 'Delete mine?' });
    const action = within(dialog).getByRole<HTMLButtonElement>('button', { name: 'Delete' });
    expect(action.disabled).toBe(true);
    expect(dialog.textContent).toContain('It goes with the end of the session');
    await userEvent.type(within(dialog).getByRole('textbox'), 'mine');
    await userEvent.click(action);
    expect(await within(card).findByText('Deleted with the end of its sessions')).toBeDefined();
    expect(within(card).queryByRole('button', { name: 'Delete' })).toBeNull();
  });
  it('leaves one that is gone', async () => {
    server.on('DELETE /func/claims/c1', () => {
      const gone = claim({ status: 'DELETED', devices: {} });
      claims = [];
      return { body: gone };
    });
    server.on('GET /func/claims/c1', () =>
      claims[0] ? { body: claims[0] } : { status: 404, body: { title: 'There is no such claim.' } },
    );
    openPage('/claims?show=c1', server);
    const card = await screen.findByRole('region', { name: 'mine' });
    await userEvent.click(await within(card).findByRole('button', { name: 'Delete' }));
    const dialog = await screen.findByRole('dialog', { name: 'Delete mine?' });
    await userEvent.type(within(dialog).getByRole('textbox'), 'mine');
    await userEvent.click(within(dialog).getByRole('button', { name: 'Delete' }));
    expect(await screen.findByText('There are no device claims')).toBeDefined();
    await expect.poll(() => screen.queryByRole('region', { name: 'mine' })).toBeNull();
  });
});
