import {
  IconAdjustments,
  IconApi,
  IconBox,
  IconChartAreaLine,
  IconCpu,
  IconFolder,
  IconHome,
  IconListNumbers,
  IconRocket,
  IconServer2,
  IconStack2,
  IconTopologyStar3,
  IconUser,
  IconUsers,
} from '@tabler/icons-react';
import type { Role } from '../api/me';

/** A page of the navigation. Pages of other features are added here, and in the route table. */
export interface Destination {
  path: string;
  label:
    | 'home'
    | 'sessions'
    | 'launch'
    | 'services'
    | 'queue'
    | 'claims'
    | 'folders'
    | 'images'
    | 'artifacts'
    | 'templates'
    | 'usage'
    | 'projects'
    | 'account'
    | 'fleet'
    | 'people'
    | 'policies'
    | 'scheduler'
    | 'presets'
    | 'registries'
    | 'storage'
    | 'proxies'
    | 'system';
  icon: typeof IconHome;
  group: 'work' | 'administration';
  /** Who may see it; everybody if absent. */
  roles?: readonly Role[];
  /** The key after `g` that goes there. */
  shortcut?: string;
}

const administrators: readonly Role[] = ['admin', 'superadmin', 'monitor'];

export const destinations: readonly Destination[] = [
  { path: '/', label: 'home', icon: IconHome, group: 'work', shortcut: 'h' },
  { path: '/sessions', label: 'sessions', icon: IconStack2, group: 'work', shortcut: 's' },
  { path: '/folders', label: 'folders', icon: IconFolder, group: 'work', shortcut: 'f' },
  { path: '/sessions/new', label: 'launch', icon: IconRocket, group: 'work', shortcut: 'n' },
  { path: '/services', label: 'services', icon: IconApi, group: 'work', shortcut: 'v' },
  { path: '/queue', label: 'queue', icon: IconListNumbers, group: 'work', shortcut: 'q' },
  { path: '/claims', label: 'claims', icon: IconCpu, group: 'work', shortcut: 'c' },
  { path: '/images', label: 'images', icon: IconBox, group: 'work', shortcut: 'i' },
  { path: '/artifacts', label: 'artifacts', icon: IconBox, group: 'work', shortcut: 'm' },
  { path: '/templates', label: 'templates', icon: IconStack2, group: 'work', shortcut: 't' },
  { path: '/usage', label: 'usage', icon: IconChartAreaLine, group: 'work', shortcut: 'u' },
  { path: '/projects', label: 'projects', icon: IconUsers, group: 'work', shortcut: 'r' },
  { path: '/account', label: 'account', icon: IconUser, group: 'work', shortcut: 'a' },
  {
    path: '/fleet',
    label: 'fleet',
    icon: IconTopologyStar3,
    group: 'administration',
    roles: ['superadmin', 'monitor'],
    shortcut: 'e',
  },
  { path: '/people', label: 'people', icon: IconUsers, group: 'administration', roles: administrators, shortcut: 'p' },
  { path: '/policies', label: 'policies', icon: IconAdjustments, group: 'administration', roles: administrators },
  { path: '/presets', label: 'presets', icon: IconAdjustments, group: 'administration', roles: administrators },
  { path: '/scheduler', label: 'scheduler', icon: IconListNumbers, group: 'administration', roles: ['superadmin'] },
  { path: '/registries', label: 'registries', icon: IconBox, group: 'administration', roles: ['superadmin'] },
  { path: '/storage', label: 'storage', icon: IconFolder, group: 'administration', roles: ['superadmin'] },
  { path: '/proxies', label: 'proxies', icon: IconApi, group: 'administration', roles: ['superadmin', 'monitor'] },
  { path: '/system', label: 'system', icon: IconServer2, group: 'administration', roles: administrators },
];

/** Returns the page of the navigation that a path belongs to: the one with the longest address. */
export function destinationOf(pathname: string): Destination | undefined {
  return destinations
    .filter(({ path }) => (path === '/' ? pathname === '/' : pathname === path || pathname.startsWith(`${path}/`)))
    .reduce<Destination | undefined>(
      (best, each) => (each.path.length > (best?.path.length ?? 0) ? each : best),
      undefined,
    );
}

/** Returns the pages that a role sees. */
export function destinationsFor(role: Role): Destination[] {
  return destinations.filter((destination) => destination.roles === undefined || destination.roles.includes(role));
}
