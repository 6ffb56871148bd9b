import { screen, waitFor, within } from '@testing-library/react';
import userEvent from '@testing-library/user-event';
import { beforeEach, describe, expect, it } from 'vitest';
import { openPage } from '../../testing/render';
import { FakeServer } from '../../testing/server';
import { operableDevices, operationOf, partitionsOf, pluginsOf, sessionsHolding } from './devices';

const empty = { profile: '', image: '', key: '', reason: '', hours: '', startsOver: false };

describe('operations on devices', () => {
  it('are those that a device can have done to it now', () => {
    const options = {
      actions: ['attach', 'cordon', 'drain', 'partition', 'uncordon', 'unpartition'],
      devices: ['a', 'b', 'b-1'],
      profiles: { a: [{ name: 'half', slot_name: 'mock.half', available: 2 }] },
      cordons: { b: 'cordoned: noise' },
      attachable: ['c'],
    };
    expect(operableDevices(options, new Set(['b-1'])).map(({ id, actions }) => [id, actions])).toEqual([
      ['a', ['cordon', 'drain', 'partition']],
      ['b', ['cordon', 'drain', 'uncordon']],
      ['b-1', ['cordon', 'drain', 'unpartition']],
      ['c', ['attach']],
    ]);
    expect(operableDevices({}, new Set())).toEqual([]);
  });
  it('know the partitions of a plugin', () => {
    const devices = JSON.stringify([
      { device_name: 'mock', device_id: 'a', partition_ids: ['a-1'] },
      { device_name: 'mock', device_id: 'b' },
      { device_name: 'mock', device_id: 'b-1', parent_id: 'b' },
      { device_name: 'cuda', device_id: 'c-1', parent_id: 'c' },
    ]);
    expect([...partitionsOf({ devices }, 'mock')]).toEqual(['a-1', 'b-1']);
  });
  it('say what they need, and nothing else', () => {
    expect(operationOf('reset', 'a', { ...empty, reason: 'unused' })).toEqual({
      action: 'reset',
      device_id: 'a',
      argument: '',
    });
    expect(operationOf('partition', 'a', empty)).toBeNull();
    expect(operationOf('partition', 'a', { ...empty, profile: 'half' })?.argument).toBe('half');
    expect(operationOf('program', 'a', { ...empty, image: ' /x.bit ' })?.argument).toBe('/x.bit');
    expect(operationOf('cordon', 'a', { ...empty, reason: 'fan', hours: 1.5 })).toEqual({
      action: 'cordon',
      device_id: 'a',
      argument: 'fan',
      expires_after_s: 5400,
    });
    expect(operationOf('cordon', 'a', { ...empty, hours: 0 })).toBeNull();
    expect(operationOf('taint', 'a', { ...empty, reason: 'old' })).toBeNull();
    expect(operationOf('taint', 'a', { ...empty, key: 'two words' })).toBeNull();
    expect(operationOf('taint', 'a', { ...empty, key: 'old', reason: 'slow' })?.argument).toBe('old slow');
    expect(operationOf('drain', 'a', { ...empty, startsOver: true })?.start_over).toBe(true);
  });
  it('are of the plugins that an agent has, those of accelerators first', () => {
    expect(pluginsOf({ devices: '[{"device_name":"cpu","device_id":"0"}]', compute_plugins: '{"mock":{}}' })).toEqual([
      'mock',
      'cpu',
    ]);
  });
  it('name the sessions on a device and on its partitions, and not those of another plugin', () => {
    const holding = (session: string, devices: unknown) => ({
      session_id: session,
      attached_devices: JSON.stringify(devices),
    });
    const agent = {
      devices: '[{"device_name":"mock","device_id":"0","partition_ids":["0/half"]}]',
      compute_containers: [
        holding('whole', { mock: [{ device_id: '0' }] }),
        holding('part', { mock: [{ device_id: '0/half' }] }),
        holding('core', { cpu: [{ device_id: '0' }] }),
      ],
    };
    expect(sessionsHolding(agent, 'mock', '0')).toEqual(['whole', 'part']);
  });
});

describe('the page of an agent', () => {
  let server: FakeServer;
  let role: string;
  const asked: unknown[] = [];
  beforeEach(() => {
    role = 'superadmin';
    asked.length = 0;
    server = new FakeServer();
    server.on('POST /server/login-check', () => ({
      body: { authenticated: true, data: { access_key: 'AKIATEST', role, status: 'active' } },
    }));
    server.graphql('agent', () => ({
      agent: {
        id: 'i-1',
        status: 'ALIVE',
        schedulable: true,
        scaling_group: 'default',
        devices: '[{"device_name":"mock","device_id":"m0"}]',
        compute_plugins: '{"mock":{}}',
        compute_containers: [{ session_id: 's1', attached_devices: '{"mock":[{"device_id":"m0"}]}' }],
      },
    }));
    server.on('GET /func/resource/agents/i-1/metrics/history', () => ({
      body: { end_s: 0, step_s: 5, metrics: {} },
    }));
    server.on('GET /func/resource/agents/i-1/devices/mock/operations', () => ({
      body: {
        actions: ['cordon', 'drain', 'partition'],
        devices: ['m0'],
        profiles: { m0: [{ name: 'half', slot_name: 'mock.half', available: 2 }] },
      },
    }));
    server.on('POST /func/resource/agents/i-1/devices/mock/operations', (body) => {
      asked.push(body);
      return { body: { device_id: body.action === 'partition' ? 'm0/1' : 'm0' } };
    });
    server.graphql('scaling_groups', () => ({ scaling_groups: [{ name: 'default' }, { name: 'gpu' }] }));
    server.graphql('modify_agent', (variables) => {
      asked.push(variables);
      return { modify_agent: { ok: true, msg: '' } };
    });
  });
  const choose = async (action: string) => {
    await userEvent.click(await screen.findByRole('button', { name: 'Operate m0' }));
    await userEvent.click(await screen.findByRole('menuitem', { name: action }));
    return screen.findByRole('dialog');
  };

  it('cuts a device by a profile, and says what came of it', async () => {
    openPage('/fleet/i-1', server);
    const dialog = await choose('Partition');
    await userEvent.click(within(dialog).getByRole('button', { name: 'Partition' }));
    expect(await screen.findByText('m0/1 has been made of m0')).toBeDefined();
    expect(asked).toEqual([{ action: 'partition', device_id: 'm0', argument: 'half' }]);
  });

  it('drains a device only after its sessions are named and its id is typed', async () => {
    openPage('/fleet/i-1', server);
    const dialog = await choose('Drain');
    expect(within(dialog).getByText('1 session is ended.')).toBeDefined();
    expect(within(dialog).getByRole('link', { name: 's1' })).toBeDefined();
    const act = within(dialog).getByRole('button', { name: 'Drain' });
    expect(act).toHaveProperty('disabled', true);
    await userEvent.type(within(dialog).getByLabelText('Reason'), 'fan{Enter}');
    expect(asked).toEqual([]);
    await userEvent.type(within(dialog).getByLabelText('Type m0 to confirm'), 'm0');
    await userEvent.click(act);
    await waitFor(() => expect(asked).toEqual([{ action: 'drain', device_id: 'm0', argument: 'fan' }]));
  });

  it('moves the agent to another resource group', async () => {
    openPage('/fleet/i-1', server);
    await userEvent.click(await screen.findByRole('button', { name: 'Move' }));
    const dialog = await screen.findByRole('dialog');
    await userEvent.selectOptions(await within(dialog).findByLabelText('Resource group'), 'gpu');
    await userEvent.click(within(dialog).getByRole('button', { name: 'Move' }));
    await waitFor(() => expect(asked).toEqual([{ id: 'i-1', group: 'gpu' }]));
  });

  it('stops the agent by its watcher, which is asked only on a click', async () => {
    let status = 'active';
    server.on('GET /func/resource/watcher', () => ({ body: { 'agent-status': status } }));
    server.on('POST /func/resource/watcher/agent/stop', (body) => {
      asked.push(body);
      status = 'inactive';
      return { body: { result: 'ok' } };
    });
    openPage('/fleet/i-1', server);
    const ask = await screen.findByRole('button', { name: 'Ask the watcher' });
    expect(server.requests.some(({ key }) => key.includes('watcher'))).toBe(false);
    await userEvent.click(ask);
    await userEvent.click(await screen.findByRole('button', { name: 'Stop' }));
    const dialog = await screen.findByRole('dialog');
    await userEvent.click(within(dialog).getByRole('button', { name: 'Stop' }));
    expect(await screen.findByText('inactive')).toBeDefined();
    expect(asked).toEqual([{ agent_id: 'i-1' }]);
  });

  it('says what is missing where there is no watcher', async () => {
    server.on('GET /func/resource/watcher', () => ({
      status: 404,
      body: { title: 'The watcher of i-1 is not known: set nodes/agents/i-1/ip in the shared configuration.' },
    }));
    openPage('/fleet/i-1', server);
    await userEvent.click(await screen.findByRole('button', { name: 'Ask the watcher' }));
    expect(await screen.findByText(/set nodes\/agents\/i-1\/ip/)).toBeDefined();
  });

  it('offers nothing of it to monitors', async () => {
    role = 'monitor';
    openPage('/fleet/i-1', server);
    expect(await screen.findByText('Facts')).toBeDefined();
    expect(screen.queryByRole('button', { name: 'Move' })).toBeNull();
    expect(screen.queryByText('Operations on devices')).toBeNull();
    expect(screen.queryByText('Agent process')).toBeNull();
  });
});
