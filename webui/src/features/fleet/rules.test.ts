import { describe, expect, it } from 'vitest';
import {
  agentAt,
  agentsOf,
  chartsOf,
  countDevices,
  devicesOf,
  type FleetAgent,
  type FleetView,
  groupAgents,
  healthOf,
  holdersOf,
  layoutMap,
  layoutTopology,
  linkPath,
  unitOf,
  unitsOf,
  usedPart,
} from './rules';

const view: FleetView = {
  columns: [
    'future',
    'id',
    'status',
    'schedulable',
    'resource_group',
    'location',
    'hardware',
    'available',
    'occupied',
    'kernels',
    'devices',
  ],
  slots: ['cpu', 'cuda.shares'],
  statuses: ['ALIVE', 'LOST'],
  resource_groups: ['default'],
  locations: [['zone', 'rack-1'], []],
  hardware: ['4 cuda:H100', ''],
  agents: [
    [1, 'i-1', 0, 1, 0, 0, 0, [8, 4], [2, 1.5], 3, '0f5x'],
    [1, 'i-2', 1, 1, 0, 1, 1, [4, null], [0, null], 0, ''],
    [1, 'i-3', 0, 0, 0, 1, 1, [4, null], [0, null], 0, ''],
  ],
};

describe('the rows of the fleet', () => {
  it('are read by the names of their columns', () => {
    const [first, second] = agentsOf(view);
    expect(first).toMatchObject({
      id: 'i-1',
      status: 'ALIVE',
      place: 'zone / rack-1',
      hardware: '4 cuda:H100',
      available: { cpu: 8, 'cuda.shares': 4 },
      kernels: 3,
    });
    expect(second?.available).toEqual({ cpu: 4 });
  });

  it('survive unknown words and missing columns', () => {
    expect(agentsOf({ ...view, columns: ['id'], agents: [['i-9']] })[0]).toMatchObject({
      id: 'i-9',
      status: '',
      devices: '',
    });
  });

  it('say how agents stand', () => {
    expect(agentsOf(view).map(healthOf)).toEqual(['bad', 'bad', 'wait']);
    expect(countDevices('0f5x')).toEqual({ free: 1, full: 1, part: 1, failed: 1 });
  });
});

it('the map has every agent once, and each is found at its place', () => {
  const layout = layoutMap(groupAgents(agentsOf(view), 'place'), 300);
  expect(layout.cells).toHaveLength(3);
  for (const { agent, x, y } of layout.cells) expect(agentAt(layout, x + 1, y + 1)?.id).toBe(agent.id);
  expect(agentAt(layout, -5, 0)).toBeNull();
  expect(new Set(layout.cells.map(({ x, y }) => `${x},${y}`)).size).toBe(3);
});

it('a map of a thousand agents stays in its width', () => {
  const agents = Array.from({ length: 1_000 }, (_, number) => ({
    ...(agentsOf(view)[0] as FleetAgent),
    id: `i-${number}`,
    devices: '0'.repeat(8),
  }));
  const layout = layoutMap([['all', agents]], 1_000);
  expect(Math.max(...layout.cells.map(({ x }) => x + layout.cellWidth))).toBeLessThanOrEqual(1_000);
});

const device = (id: string, numa: number | null, links: string[] = []) => ({
  device_name: 'cuda',
  device_id: id,
  numa_node: numa,
  health: 'healthy',
  slots: [{ slot_name: 'cuda.shares', amount: '2' }],
  allocated: { 'cuda.shares': '0.5' },
  links: links.map((peer) => ({ peer, kind: 'direct', bandwidth_gib_s: 300 })),
});

describe('the devices of an agent', () => {
  const devices = devicesOf(
    JSON.stringify([
      device('a', 0, ['b']),
      device('b', 0, ['a']),
      device('c', 1, ['gone']),
      { device_name: 'cpu', device_id: '0' },
    ]),
  );

  it('are laid out by NUMA node, each link drawn once', () => {
    const topology = layoutTopology(devices);
    expect(topology.nodes.map((node) => node.numa)).toEqual([0, 1]);
    expect(topology.devices.map(({ device: each }) => each.id)).toEqual(['a', 'b', 'c']);
    expect(topology.links.map(({ from, to }) => [from.device.id, to.device.id])).toEqual([['a', 'b']]);
    expect(topology.links.map(({ from, to }) => linkPath(from, to))).toEqual([expect.stringMatching(/^M \d+ \d+ C /)]);
  });

  it('say how much of them is in use', () => {
    expect(devices.map(usedPart)).toEqual([0.25, 0.25, 0.25, 0]);
  });

  it.each(['', 'nothing', '{}', '[null, 3]', null])('are none where %s is reported', (text) => {
    expect(devicesOf(text)).toEqual([]);
  });

  it('are held by kernels', () => {
    const attached = JSON.stringify({ cuda: [{ device_id: 'a' }], odd: 'text' });
    expect(holdersOf([null, { id: '1', session_id: 's', status: 'RUNNING', attached_devices: attached }])).toEqual([
      { id: '1', session: 's', status: 'RUNNING', devices: ['a'] },
    ]);
  });
});

it('a chart has the devices of a metric, in place of their sum', () => {
  const charts = chartsOf({ cpu_util: [1], 'cuda_util/0': [1], 'cuda_util/1': [2], cuda_util: [3] });
  expect(charts.map((chart) => [chart.name, chart.series.map((each) => each.label)])).toEqual([
    ['cpu_util', ['cpu_util']],
    ['cuda_util', ['0', '1']],
  ]);
});

it('metrics have the units that the agent reports, or those of their names', () => {
  const units = unitsOf(
    JSON.stringify({
      node: { cpu_util: { unit_hint: 'pct' }, cpu_used: { unit_hint: 'pct', unit: 'msec' }, odd: null },
      devices: { cuda_power: { 0: { unit_hint: 'pct', unit: 'watt' } }, net_rx: { eth0: { unit_hint: 'bps' } } },
    }),
  );
  expect(units).toEqual({ cpu_util: 'percent', cpu_used: 'msec', cuda_power: 'watt', net_rx: 'bps' });
  expect(unitOf('cpu_used', units)).toBe('msec');
  expect(['mem', 'cuda_mem', 'net_rx', 'cpu_util', 'other'].map((name) => unitOf(name, {}))).toEqual([
    'bytes',
    'bytes',
    'bps',
    'percent',
    '',
  ]);
  expect(unitsOf(null)).toEqual({});
});
