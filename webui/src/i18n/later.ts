import type proof from '../app/proof/locale/en.json';
import type dotfiles from '../components/dotfiles/locale/en.json';
import type account from '../features/account/locale/en.json';
import type artifacts from '../features/artifacts/locale/en.json';
import type claims from '../features/claims/locale/en.json';
import type fleet from '../features/fleet/locale/en.json';
import type folders from '../features/folders/locale/en.json';
import type preview from '../features/folders/locale/preview/en.json';
import type images from '../features/images/locale/en.json';
import type launch from '../features/launch/locale/en.json';
import type registration from '../features/login/registration/locale/en.json';
import type signUp from '../features/login/signup/locale/en.json';
import type tokenLogin from '../features/login/token/locale/en.json';
import type operations from '../features/operations/locale/en.json';
import type editing from '../features/people/editing/locale/en.json';
import type projects from '../features/projects/locale/en.json';
import type queue from '../features/queue/locale/en.json';
import type services from '../features/services/locale/en.json';
import type playground from '../features/services/locale/playground/en.json';
import type scaling from '../features/services/locale/scaling/en.json';
import type sessionWork from '../features/sessions/locale/work/en.json';
import type templates from '../features/templates/locale/en.json';
import type terminal from '../features/terminal/locale/en.json';
import type usage from '../features/usage/locale/en.json';

/** Messages that come with their pages instead of with the first one. */
export interface LaterMessages {
  account: typeof account;
  templates: typeof templates;
  artifacts: typeof artifacts;
  dotfiles: typeof dotfiles;
  claims: typeof claims;
  folders: typeof folders;
  images: typeof images;
  launch: typeof launch;
  terminal: typeof terminal;
  fleet: typeof fleet;
  operations: typeof operations;
  editing: typeof editing;
  projects: typeof projects;
  proof: typeof proof;
  queue: typeof queue;
  registration: typeof registration;
  signUp: typeof signUp;
  tokenLogin: typeof tokenLogin;
  preview: typeof preview;
  services: typeof services;
  playground: typeof playground;
  scaling: typeof scaling;
  sessionWork: typeof sessionWork;
  usage: typeof usage;
}

type Loaders = {
  [name in keyof LaterMessages]: Record<'en' | 'ko', () => Promise<{ default: LaterMessages[name] }>>;
};

// The type of the Korean ones is that of the English ones, so that a key missing in either does not compile.
export const later: Loaders = {
  account: {
    en: () => import('../features/account/locale/en.json'),
    ko: () => import('../features/account/locale/ko.json'),
  },
  artifacts: {
    en: () => import('../features/artifacts/locale/en.json'),
    ko: () => import('../features/artifacts/locale/ko.json'),
  },
  dotfiles: {
    en: () => import('../components/dotfiles/locale/en.json'),
    ko: () => import('../components/dotfiles/locale/ko.json'),
  },
  claims: {
    en: () => import('../features/claims/locale/en.json'),
    ko: () => import('../features/claims/locale/ko.json'),
  },
  templates: {
    en: () => import('../features/templates/locale/en.json'),
    ko: () => import('../features/templates/locale/ko.json'),
  },
  folders: {
    en: () => import('../features/folders/locale/en.json'),
    ko: () => import('../features/folders/locale/ko.json'),
  },
  images: {
    en: () => import('../features/images/locale/en.json'),
    ko: () => import('../features/images/locale/ko.json'),
  },
  launch: {
    en: () => import('../features/launch/locale/en.json'),
    ko: () => import('../features/launch/locale/ko.json'),
  },
  terminal: {
    en: () => import('../features/terminal/locale/en.json'),
    ko: () => import('../features/terminal/locale/ko.json'),
  },
  fleet: {
    en: () => import('../features/fleet/locale/en.json'),
    ko: () => import('../features/fleet/locale/ko.json'),
  },
  operations: {
    en: () => import('../features/operations/locale/en.json'),
    ko: () => import('../features/operations/locale/ko.json'),
  },
  editing: {
    en: () => import('../features/people/editing/locale/en.json'),
    ko: () => import('../features/people/editing/locale/ko.json'),
  },
  projects: {
    en: () => import('../features/projects/locale/en.json'),
    ko: () => import('../features/projects/locale/ko.json'),
  },
  proof: {
    en: () => import('../app/proof/locale/en.json'),
    ko: () => import('../app/proof/locale/ko.json'),
  },
  queue: {
    en: () => import('../features/queue/locale/en.json'),
    ko: () => import('../features/queue/locale/ko.json'),
  },
  registration: {
    en: () => import('../features/login/registration/locale/en.json'),
    ko: () => import('../features/login/registration/locale/ko.json'),
  },
  signUp: {
    en: () => import('../features/login/signup/locale/en.json'),
    ko: () => import('../features/login/signup/locale/ko.json'),
  },
  tokenLogin: {
    en: () => import('../features/login/token/locale/en.json'),
    ko: () => import('../features/login/token/locale/ko.json'),
  },
  preview: {
    en: () => import('../features/folders/locale/preview/en.json'),
    ko: () => import('../features/folders/locale/preview/ko.json'),
  },
  services: {
    en: () => import('../features/services/locale/en.json'),
    ko: () => import('../features/services/locale/ko.json'),
  },
  playground: {
    en: () => import('../features/services/locale/playground/en.json'),
    ko: () => import('../features/services/locale/playground/ko.json'),
  },
  scaling: {
    en: () => import('../features/services/locale/scaling/en.json'),
    ko: () => import('../features/services/locale/scaling/ko.json'),
  },
  sessionWork: {
    en: () => import('../features/sessions/locale/work/en.json'),
    ko: () => import('../features/sessions/locale/work/ko.json'),
  },
  usage: {
    en: () => import('../features/usage/locale/en.json'),
    ko: () => import('../features/usage/locale/ko.json'),
  },
};
