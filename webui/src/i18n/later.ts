import type fleet from '../features/fleet/locale/en.json';
import type registration from '../features/login/registration/locale/en.json';
import type operations from '../features/operations/locale/en.json';
import type queue from '../features/queue/locale/en.json';
import type services from '../features/services/locale/en.json';
import type usage from '../features/usage/locale/en.json';

/** Messages that come with their pages instead of with the first one. */
export interface LaterMessages {
  fleet: typeof fleet;
  operations: typeof operations;
  queue: typeof queue;
  registration: typeof registration;
  services: typeof services;
  usage: typeof usage;
}

type Loaders = {
  [name in keyof LaterMessages]: Record<'en' | 'ko', () => Promise<{ default: LaterMessages[name] }>>;
};

// The type of the Korean ones is that of the English ones, so that a key missing in either does not compile.
export const later: Loaders = {
  fleet: {
    en: () => import('../features/fleet/locale/en.json'),
    ko: () => import('../features/fleet/locale/ko.json'),
  },
  operations: {
    en: () => import('../features/operations/locale/en.json'),
    ko: () => import('../features/operations/locale/ko.json'),
  },
  queue: {
    en: () => import('../features/queue/locale/en.json'),
    ko: () => import('../features/queue/locale/ko.json'),
  },
  registration: {
    en: () => import('../features/login/registration/locale/en.json'),
    ko: () => import('../features/login/registration/locale/ko.json'),
  },
  services: {
    en: () => import('../features/services/locale/en.json'),
    ko: () => import('../features/services/locale/ko.json'),
  },
  usage: {
    en: () => import('../features/usage/locale/en.json'),
    ko: () => import('../features/usage/locale/ko.json'),
  },
};
