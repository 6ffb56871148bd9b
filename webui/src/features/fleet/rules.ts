import { parseObject } from '../../api/filters';
import type { components } from '../../api/generated/rest';

export type FleetView = components['schemas']['FleetView'];

export interface FleetAgent {
  id: string;
  status: string;
  schedulable: boolean;
  group: string;
  place: string;
  hardware: string;
  available: Record<string, number>;
  occupied: Record<string, number>;
  kernels: number;
  /** A letter for each accelerator; see `FleetView`. */
  devices: string;
}

function amountsOf(slots: readonly string[], values: unknown): Record<string, number> {
  if (!Array.isArray(values)) return {};
  return Object.fromEntries(
    slots.flatMap((slot, place) => (typeof values[place] === 'number' ? [[slot, values[place]]] : [])),
  );
}

/** Reads the rows of the fleet by the names of their columns, so that further columns do no harm. */
export function agentsOf(view: FleetView): FleetAgent[] {
  const column = new Map(view.columns.map((name, place) => [name, place]));
  return view.agents.map((row) => {
    const cell = (name: string): unknown => (row as unknown[])[column.get(name) ?? -1];
    const word = (words: readonly unknown[], name: string) => words[Number(cell(name))];
    return {
      id: String(cell('id')),
      status: String(word(view.statuses, 'status') ?? ''),
      schedulable: cell('schedulable') === 1,
      group: String(word(view.resource_groups, 'resource_group') ?? ''),
      place: ((word(view.locations, 'location') as string[] | undefined) ?? []).join(' / '),
      hardware: String(word(view.hardware, 'hardware') ?? ''),
      available: amountsOf(view.slots, cell('available')),
      occupied: amountsOf(view.slots, cell('occupied')),
      kernels: Number(cell('kernels')) || 0,
      devices: String(cell('devices') ?? ''),
    };
  });
}

export type DeviceState = 'free' | 'part' | 'full' | 'failed';

export function deviceState(letter: string): DeviceState {
  if (letter === '0') return 'free';
  if (letter === 'f') return 'full';
  return letter === 'x' ? 'failed' : 'part';
}

/** Returns how many devices of an agent are in each state. */
export function countDevices(devices: string): Record<DeviceState, number> {
  const counts: Record<DeviceState, number> = { free: 0, part: 0, full: 0, failed: 0 };
  for (const letter of devices) counts[deviceState(letter)] += 1;
  return counts;
}

export type AgentHealth = 'good' | 'wait' | 'bad';

/** Returns how an agent stands: lost or failed, drained, or well. */
export function healthOf(agent: FleetAgent): AgentHealth {
  if (agent.status !== 'ALIVE' || agent.devices.includes('x')) return 'bad';
  return agent.schedulable ? 'good' : 'wait';
}

/** Returns the agents by a key of theirs, the keys in order. */
export function groupAgents(agents: readonly FleetAgent[], by: 'place' | 'group'): [string, FleetAgent[]][] {
  const groups = new Map<string, FleetAgent[]>();
  for (const agent of agents) {
    const members = groups.get(agent[by]);
    if (members) members.push(agent);
    else groups.set(agent[by], [agent]);
  }
  return [...groups].sort(([a], [b]) => a.localeCompare(b));
}

export interface Cell {
  agent: FleetAgent;
  x: number;
  y: number;
}

export interface MapLayout {
  cells: Cell[];
  headings: { text: string; y: number }[];
  cellWidth: number;
  cellHeight: number;
  height: number;
}

const gap = 6;
const headingHeight = 26;
const square = 10;

/** Lays the agents out in rows below a heading for each place; all cells are of one size. */
export function layoutMap(groups: readonly [string, FleetAgent[]][], width: number): MapLayout {
  const most = Math.max(1, ...groups.flatMap(([, agents]) => agents.map((agent) => agent.devices.length)));
  const acrossDevices = Math.min(most, 8);
  const cellWidth = Math.max(36, acrossDevices * (square + 2) + 8);
  const cellHeight = 20 + Math.ceil(most / acrossDevices) * (square + 2);
  const across = Math.max(1, Math.floor((width + gap) / (cellWidth + gap)));
  const cells: Cell[] = [];
  const headings: MapLayout['headings'] = [];
  let y = 0;
  for (const [text, agents] of groups) {
    headings.push({ text, y });
    y += headingHeight;
    agents.forEach((agent, number) => {
      cells.push({
        agent,
        x: (number % across) * (cellWidth + gap),
        y: y + Math.floor(number / across) * (cellHeight + gap),
      });
    });
    y += Math.ceil(agents.length / across) * (cellHeight + gap) + gap;
  }
  return { cells, headings, cellWidth, cellHeight, height: y };
}

/** Returns the agent at a point of the map. */
export function agentAt(layout: MapLayout, x: number, y: number): FleetAgent | null {
  const cell = layout.cells.find(
    (each) => x >= each.x && x < each.x + layout.cellWidth && y >= each.y && y < each.y + layout.cellHeight,
  );
  return cell?.agent ?? null;
}

// ---- one agent

export interface Device {
  name: string;
  id: string;
  model: string;
  health: string;
  reason: string;
  numa: number | null;
  /** Its partitions that are counted at it. */
  partitions: string[];
  /** The device of which this one is a partition; empty for a whole one. */
  parent: string;
  links: { peer: string; kind: string; bandwidth: number | null }[];
  /** Slot -> amount, and what of it is allocated. */
  slots: { slot: string; amount: number; allocated: number }[];
}

/** Reads the devices of an agent; what cannot be read is left out. */
export function devicesOf(json: string | null | undefined): Device[] {
  let list: unknown;
  try {
    list = JSON.parse(json ?? '[]');
  } catch {
    return [];
  }
  if (!Array.isArray(list)) return [];
  return list
    .filter((item): item is Record<string, unknown> => typeof item === 'object' && item !== null)
    .map((item) => {
      const allocated = (item.allocated ?? {}) as Record<string, unknown>;
      const slots = Array.isArray(item.slots) ? item.slots : [];
      const links = Array.isArray(item.links) ? item.links : [];
      return {
        name: String(item.device_name ?? ''),
        id: String(item.device_id ?? ''),
        model: String(item.model_name ?? ''),
        health: String(item.health ?? 'healthy'),
        reason: String(item.health_reason ?? ''),
        partitions: Array.isArray(item.partition_ids) ? item.partition_ids.map(String) : [],
        parent: typeof item.parent_id === 'string' ? item.parent_id : '',
        numa: typeof item.numa_node === 'number' ? item.numa_node : null,
        links: links.map((link) => ({
          peer: String(link?.peer ?? ''),
          kind: String(link?.kind ?? ''),
          bandwidth: typeof link?.bandwidth_gib_s === 'number' ? link.bandwidth_gib_s : null,
        })),
        slots: slots.map((slot) => ({
          slot: String(slot?.slot_name ?? ''),
          amount: Number(slot?.amount ?? 0),
          allocated: Number(allocated[String(slot?.slot_name ?? '')] ?? 0),
        })),
      };
    });
}

/** Returns which part of a device is in use, from 0 to 1: of the slot of which most is. */
export function usedPart(device: Device): number {
  const parts = device.slots.filter((slot) => slot.amount > 0).map((slot) => slot.allocated / slot.amount);
  return Math.min(1, Math.max(0, ...parts));
}

export interface Placed {
  device: Device;
  x: number;
  y: number;
}

export interface Topology {
  nodes: { numa: number | null; x: number; width: number }[];
  devices: Placed[];
  links: { from: Placed; to: Placed; kind: string; bandwidth: number | null }[];
  width: number;
  height: number;
}

export const box = { width: 96, height: 64, gap: 14 };
const direct = 'direct';
const perRow = 4;

/** Lays the accelerators out by NUMA node, with their direct links; other links follow from the nodes. */
export function layoutTopology(all: readonly Device[]): Topology {
  const devices = all.filter((device) => device.name !== 'cpu' && device.name !== 'mem');
  const numas = [...new Set(devices.map((device) => device.numa))].sort((a, b) => (a ?? -1) - (b ?? -1));
  const placed: Placed[] = [];
  const nodes: Topology['nodes'] = [];
  let x = 0;
  let rows = 1;
  for (const numa of numas) {
    const members = devices.filter((device) => device.numa === numa);
    const columns = Math.min(perRow, members.length);
    const width = columns * (box.width + box.gap) + box.gap;
    members.forEach((device, number) => {
      placed.push({
        device,
        x: x + box.gap + (number % perRow) * (box.width + box.gap),
        y: 34 + Math.floor(number / perRow) * (box.height + 3 * box.gap),
      });
    });
    rows = Math.max(rows, Math.ceil(members.length / perRow));
    nodes.push({ numa, x, width });
    x += width + 2 * box.gap;
  }
  const byId = new Map(placed.map((each) => [each.device.id, each]));
  const links: Topology['links'] = [];
  for (const from of placed) {
    for (const link of from.device.links) {
      const to = byId.get(link.peer);
      if (to && link.kind === direct && from.device.id < to.device.id) {
        links.push({ from, to, kind: link.kind, bandwidth: link.bandwidth });
      }
    }
  }
  return {
    nodes,
    devices: placed,
    links,
    width: Math.max(0, x - 2 * box.gap),
    height: 34 + rows * (box.height + 3 * box.gap),
  };
}

/** Returns the line of a link: below two devices of one row, else from the lower edge of the upper one. */
export function linkPath(from: Placed, to: Placed): string {
  const [upper, lower] = from.y <= to.y ? [from, to] : [to, from];
  const x1 = upper.x + box.width / 2;
  const x2 = lower.x + box.width / 2;
  const y1 = upper.y + box.height;
  if (upper.y === lower.y) {
    const depth = Math.min(2.6 * box.gap, 14 + Math.abs(x2 - x1) / 12);
    return `M ${x1} ${y1} C ${x1} ${y1 + depth} ${x2} ${y1 + depth} ${x2} ${y1}`;
  }
  return `M ${x1} ${y1} C ${x1} ${y1 + box.gap} ${x2} ${lower.y - box.gap} ${x2} ${lower.y}`;
}

export interface MetricChart {
  name: string;
  series: { label: string; values: (number | null)[] }[];
}

/** Returns a chart for each metric; its devices, named `metric/device`, are series of one chart. */
export function chartsOf(metrics: Record<string, (number | null)[]>): MetricChart[] {
  const charts = new Map<string, MetricChart>();
  for (const [name, values] of Object.entries(metrics)) {
    const [metric = name, device] = name.split('/');
    const isOfDevice = device !== undefined;
    const key = isOfDevice ? `${metric}/` : metric;
    const chart = charts.get(key) ?? { name: metric, series: [] };
    chart.series.push({ label: device ?? metric, values });
    charts.set(key, chart);
  }
  // What each device used says more than their sum.
  return [...charts].filter(([key]) => !charts.has(`${key}/`)).map(([, chart]) => chart);
}

const publishedUnits: Record<string, string> = { pct: 'percent', Celsius: 'celsius' };

/** Returns the units of the metrics of an agent by name; `live_stat` has its own names for some, and hides others. */
export function unitsOf(text: string | null | undefined): Record<string, string> {
  const { node, devices } = parseObject(text);
  const units: Record<string, string> = {};
  const take = (name: string, metric: unknown) => {
    const { unit, unit_hint: published } = (metric ?? {}) as { unit?: unknown; unit_hint?: unknown };
    const hint = String(unit ?? published ?? '');
    if (hint !== '') units[name] = publishedUnits[hint] ?? hint;
  };
  for (const [name, metric] of Object.entries((node ?? {}) as object)) take(name, metric);
  for (const [name, ofDevice] of Object.entries((devices ?? {}) as object))
    for (const metric of Object.values((ofDevice ?? {}) as object)) take(name, metric);
  return units;
}

const unitsByName: [RegExp, string][] = [
  [/^net_/, 'bps'],
  [/^(mem|disk|io_)|(^|_)mem$/, 'bytes'],
  [/(^|_)util$/, 'percent'],
];

/** Returns the unit of a metric; by its name where the agent reports it no more. */
export function unitOf(metric: string, units: Record<string, string>): string {
  return units[metric] ?? unitsByName.find(([pattern]) => pattern.test(metric))?.[1] ?? '';
}

export interface Holder {
  id: string;
  session: string;
  status: string;
  devices: string[];
}

/** Returns which devices each kernel of an agent holds; with `plugin` those of this one. */
export function holdersOf(
  containers: readonly ({ id?: unknown; session_id?: unknown; status?: unknown; attached_devices?: unknown } | null)[],
  plugin?: string,
): Holder[] {
  return containers
    .filter((item) => item !== null)
    .map((item) => ({
      id: String(item.id ?? ''),
      session: String(item.session_id ?? ''),
      status: String(item.status ?? ''),
      devices: Object.entries(parseObject(item.attached_devices as string | null)).flatMap(([name, list]) =>
        Array.isArray(list) && (plugin === undefined || plugin === name)
          ? list.map((device) => String((device as { device_id?: unknown })?.device_id ?? ''))
          : [],
      ),
    }));
}

/** Returns the ids of the sessions that have kernels on an agent, each once. */
export function sessionsOn(agent: {
  compute_containers?: readonly ({ session_id?: string | null } | null)[] | null;
}): string[] {
  return [...new Set((agent.compute_containers ?? []).map((kernel) => kernel?.session_id ?? '').filter(Boolean))];
}
