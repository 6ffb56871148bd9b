import type { QueryClient } from '@tanstack/react-query';
import {
  createRootRouteWithContext,
  createRoute,
  createRouter,
  lazyRouteComponent,
  Outlet,
  type RouterHistory,
  redirect,
  type SearchSchemaInput,
  stripSearchParams,
} from '@tanstack/react-router';
import { expiry } from '../api/expiry';
import type { Login } from '../api/login';
import { loginQuery, meOptions } from '../api/me';
import { prefix } from '../api/prefix';
import { draftOf, searchOf } from '../features/launch/draft';
import { serviceDraftOf, serviceSearchOf } from '../features/services/draft';
import { isMode, type Mode } from '../features/services/playground/requests';
import { isUseGrouping, type UseGrouping } from '../features/services/rules';
import { loadMessages } from '../i18n';
import type { LaterMessages } from '../i18n/later';
import { ExpiredDialog } from './ExpiredDialog';
import { Failed, NotFound } from './Fallbacks';
import { HomePage } from './home/HomePage';
import { Shell } from './Shell';

interface Context {
  client: QueryClient;
}

function textOf(value: unknown): string {
  return typeof value === 'string' ? value : typeof value === 'number' ? String(value) : '';
}

/** Returns those of the named fields of an address that have text. */
function textsOf<K extends string>(search: Record<string, unknown>, ...names: K[]): { [name in K]?: string } {
  return Object.fromEntries(names.map((name) => [name, textOf(search[name])]).filter(([, text]) => text !== '')) as {
    [name in K]?: string;
  };
}

const lastPage = 1_000_000; // what servers count stays an integer

/** Returns the page of a list that an address names, as a whole number; undefined, in place of what it says, for the first. */
function pageOf(search: Record<string, unknown>): { page?: number | undefined } {
  const page = Math.floor(Number(search.page));
  return { page: page > 1 ? Math.min(page, lastPage) : undefined };
}

/** A page that is loaded when it is opened, with its messages. */
function pageWithMessages<T extends Record<string, unknown>>(
  names: keyof LaterMessages | (keyof LaterMessages)[],
  load: () => Promise<T>,
) {
  return lazyRouteComponent(async () => (await Promise.all([load(), ...[names].flat().map(loadMessages)]))[0]);
}

const root = createRootRouteWithContext<Context>()({
  component: Outlet,
  notFoundComponent: NotFound,
  errorComponent: Failed,
});

const login = createRoute({
  getParentRoute: () => root,
  path: '/login',
  validateSearch: (search): { next?: string } => (typeof search.next === 'string' ? { next: search.next } : {}),
  component: lazyRouteComponent(() => import('../features/login/pages/LoginPage')),
});

const tokenLogin = createRoute({
  getParentRoute: () => root,
  path: '/token-login',
  validateSearch: (search): { next?: string } => (typeof search.next === 'string' ? { next: search.next } : {}),
  component: pageWithMessages('tokenLogin', () => import('../features/login/pages/TokenLoginPage')),
});

const signUp = createRoute({
  getParentRoute: () => root,
  path: '/sign-up',
  component: pageWithMessages('signUp', () => import('../features/login/signup/SignUpPage')),
});

const verifyEmail = createRoute({
  getParentRoute: () => root,
  path: '/verify-email',
  component: pageWithMessages('signUp', () => import('../features/login/signup/VerifyEmailPage')),
});

let reported: Login | null = null;

/** Leads who is not logged in to the login page, and back afterwards. Reports a login that is new to this page. */
async function requireLogin({ context, location }: { context: Context; location: { href: string } }): Promise<void> {
  const known = await context.client.ensureQueryData(loginQuery);
  if (known === null) {
    context.client.removeQueries({ queryKey: loginQuery.queryKey });
    throw redirect({ to: '/login', search: location.href === '/' ? {} : { next: location.href } });
  }
  if (known !== reported) {
    reported = known;
    expiry.renew(known.accessKey);
  }
  void context.client.prefetchQuery(meOptions);
}

const shell = createRoute({
  getParentRoute: () => root,
  id: 'shell',
  component: Shell,
  notFoundComponent: NotFound,
  beforeLoad: requireLogin,
});

/** Pages that fill the window, without the frame. */
const bare = createRoute({
  getParentRoute: () => root,
  id: 'bare',
  component: () => (
    <>
      <Outlet />
      <ExpiredDialog />
    </>
  ),
  beforeLoad: requireLogin,
});

const terminal = createRoute({
  getParentRoute: () => bare,
  path: '/sessions/$id/terminal',
  component: pageWithMessages('terminal', () => import('../features/terminal/pages/TerminalPage')),
});

const folders = createRoute({
  getParentRoute: () => shell,
  path: '/folders',
  validateSearch: (search): { q?: string; sort?: string; view?: 'trash' | 'all' } => ({
    ...textsOf(search, 'q', 'sort'),
    ...(search.view === 'trash' || search.view === 'all' ? { view: search.view } : {}),
  }),
  component: pageWithMessages('folders', () => import('../features/folders/pages/FoldersPage')),
});

const shares = createRoute({
  getParentRoute: () => shell,
  path: '/folders/shares',
  component: pageWithMessages('folders', () => import('../features/folders/pages/SharesPage')),
});

/** The file of a directory whose content is shown. */
const shownFile = (search: Record<string, unknown>): { show?: string } =>
  textOf(search.show) === '' ? {} : { show: textOf(search.show) };

const folder = createRoute({
  getParentRoute: () => shell,
  path: '/folders/$id',
  validateSearch: shownFile,
  component: pageWithMessages('folders', () => import('../features/folders/pages/FolderPage')),
});

const folderFiles = createRoute({
  getParentRoute: () => shell,
  path: '/folders/$id/files/$',
  validateSearch: shownFile,
  component: pageWithMessages('folders', () => import('../features/folders/pages/FolderPage')),
});

const home = createRoute({
  getParentRoute: () => shell,
  path: '/',
  component: HomePage,
});

/** The filter, order and scope of the list of sessions. */
export interface SessionsSearch {
  q: string;
  status: string;
  sort: string;
  whose: string;
}

const sessionsDefaults: SessionsSearch = { q: '', status: 'live', sort: '-created_at', whose: '' };
const sessions = createRoute({
  getParentRoute: () => shell,
  path: '/sessions',
  validateSearch: (search: Partial<SessionsSearch> & SearchSchemaInput): SessionsSearch => ({
    q: textOf(search.q),
    status: textOf(search.status) || sessionsDefaults.status,
    sort: textOf(search.sort) || sessionsDefaults.sort,
    whose: textOf(search.whose),
  }),
  search: { middlewares: [stripSearchParams(sessionsDefaults)] },
  component: lazyRouteComponent(() => import('../features/sessions/pages/SessionsPage')),
});

const arrays = createRoute({
  getParentRoute: () => shell,
  path: '/sessions/arrays',
  validateSearch: (search): { page?: number | undefined; all?: boolean } => ({
    ...pageOf(search),
    ...(search.all === true ? { all: true } : {}),
  }),
  component: pageWithMessages('sessionWork', () => import('../features/sessions/pages/ArraysPage')),
});

const session = createRoute({
  getParentRoute: () => shell,
  path: '/sessions/$id',
  component: lazyRouteComponent(() => import('../features/sessions/pages/SessionPage')),
});

const sessionTab = createRoute({
  getParentRoute: () => shell,
  path: '/sessions/$id/$tab',
  validateSearch: (search): { q?: string; path?: string } => ({
    ...(textOf(search.q) === '' ? {} : { q: textOf(search.q) }),
    ...(textOf(search.path) === '' ? {} : { path: textOf(search.path) }),
  }),
  component: lazyRouteComponent(() => import('../features/sessions/pages/SessionPage')),
});

const images = createRoute({
  getParentRoute: () => shell,
  path: '/images',
  validateSearch: (search): { q?: string } => (textOf(search.q) === '' ? {} : { q: textOf(search.q) }),
  component: pageWithMessages('images', () => import('../features/images/pages/ImagesPage')),
});

const artifacts = createRoute({
  getParentRoute: () => shell,
  path: '/artifacts',
  validateSearch: (search): { q?: string; type?: string; page?: number | undefined } => ({
    ...textsOf(search, 'q', 'type'),
    ...pageOf(search),
  }),
  component: pageWithMessages('artifacts', () => import('../features/artifacts/pages/ArtifactsPage')),
});

const artifact = createRoute({
  getParentRoute: () => shell,
  path: '/artifacts/$id',
  validateSearch: (search): { files?: string } => textsOf(search, 'files'),
  component: pageWithMessages('artifacts', () => import('../features/artifacts/pages/ArtifactPage')),
});

const claims = createRoute({
  getParentRoute: () => shell,
  path: '/claims',
  validateSearch: (search): { page?: number | undefined; show?: string } => ({
    ...pageOf(search),
    ...textsOf(search, 'show'),
  }),
  component: pageWithMessages('claims', () => import('../features/claims/pages/ClaimsPage')),
});

const templates = createRoute({
  getParentRoute: () => shell,
  path: '/templates',
  validateSearch: (search): { kind?: 'session' | 'cluster'; show?: string; all?: boolean } => ({
    ...(search.kind === 'cluster' ? { kind: 'cluster' } : {}),
    ...textsOf(search, 'show'),
    ...(search.all === true ? { all: true } : {}),
  }),
  component: pageWithMessages('templates', () => import('../features/templates/pages/TemplatesPage')),
});

const account = createRoute({
  getParentRoute: () => shell,
  path: '/account',
  validateSearch: pageOf,
  component: pageWithMessages(['account', 'dotfiles'], () => import('../features/account/pages/AccountPage')),
});

const people = createRoute({
  getParentRoute: () => shell,
  path: '/people',
  validateSearch: (search): { tab?: string; q?: string; sort?: string } => ({
    ...(textOf(search.tab) === '' ? {} : { tab: textOf(search.tab) }),
    ...(textOf(search.q) === '' ? {} : { q: textOf(search.q) }),
    ...(textOf(search.sort) === '' ? {} : { sort: textOf(search.sort) }),
  }),
  component: pageWithMessages('editing', () => import('../features/people/pages/PeoplePage')),
});

const projects = createRoute({
  getParentRoute: () => shell,
  path: '/projects',
  component: pageWithMessages('projects', () => import('../features/projects/pages/ProjectsPage')),
});

const project = createRoute({
  getParentRoute: () => shell,
  path: '/projects/$id',
  validateSearch: (search): { q?: string; sort?: string } => textsOf(search, 'q', 'sort'),
  component: pageWithMessages(['projects', 'dotfiles'], () => import('../features/projects/pages/ProjectPage')),
});

const newUser = createRoute({
  getParentRoute: () => shell,
  path: '/people/new',
  component: lazyRouteComponent(() => import('../features/people/pages/NewUserPage')),
});

const domain = createRoute({
  getParentRoute: () => shell,
  path: '/domains/$name',
  component: pageWithMessages('dotfiles', () => import('../features/people/pages/DomainPage')),
});

const policies = createRoute({
  getParentRoute: () => shell,
  path: '/policies',
  component: pageWithMessages('editing', () => import('../features/people/pages/PoliciesPage')),
});

const system = createRoute({
  getParentRoute: () => shell,
  path: '/system',
  component: pageWithMessages('operations', () => import('../features/operations/pages/SystemPage')),
});

const systemSettings = createRoute({
  getParentRoute: () => shell,
  path: '/system/settings',
  validateSearch: (search): { q?: string; of?: 'all' } => ({
    ...textsOf(search, 'q'),
    ...(search.of === 'all' ? { of: 'all' } : {}),
  }),
  component: pageWithMessages('operations', () => import('../features/operations/pages/SettingsPage')),
});

const systemConfiguration = createRoute({
  getParentRoute: () => shell,
  path: '/system/configuration',
  validateSearch: (search): { at?: string } => textsOf(search, 'at'),
  component: pageWithMessages('operations', () => import('../features/operations/pages/ConfigurationPage')),
});

const systemAudit = createRoute({
  getParentRoute: () => shell,
  path: '/system/audit',
  validateSearch: (search): { email?: string; text?: string; refused?: boolean; before?: number } => ({
    ...textsOf(search, 'email', 'text'),
    ...(search.refused === true ? { refused: true } : {}),
    ...(Number(search.before) > 0 ? { before: Number(search.before) } : {}),
  }),
  component: pageWithMessages('operations', () => import('../features/operations/pages/AuditPage')),
});

const systemErrors = createRoute({
  getParentRoute: () => shell,
  path: '/system/errors',
  validateSearch: pageOf,
  component: pageWithMessages('operations', () => import('../features/operations/pages/ErrorsPage')),
});

const systemRoles = createRoute({
  getParentRoute: () => shell,
  path: '/system/roles',
  validateSearch: (search): { q?: string } => textsOf(search, 'q'),
  component: pageWithMessages('operations', () => import('../features/operations/pages/RolesPage')),
});

const registries = createRoute({
  getParentRoute: () => shell,
  path: '/registries',
  validateSearch: (search): { q?: string } => textsOf(search, 'q'),
  component: pageWithMessages('operations', () => import('../features/operations/pages/RegistriesPage')),
});

const storage = createRoute({
  getParentRoute: () => shell,
  path: '/storage',
  validateSearch: (search): { host?: string; owner?: string } => textsOf(search, 'host', 'owner'),
  component: pageWithMessages('operations', () => import('../features/operations/pages/StoragePage')),
});

const proxies = createRoute({
  getParentRoute: () => shell,
  path: '/proxies',
  validateSearch: (search): { group?: string; worker?: string } => textsOf(search, 'group', 'worker'),
  component: pageWithMessages('operations', () => import('../features/operations/pages/AppProxiesPage')),
});

const scheduler = createRoute({
  getParentRoute: () => shell,
  path: '/scheduler',
  validateSearch: (search): { group?: string; order?: string; placement?: string } =>
    textsOf(search, 'group', 'order', 'placement'),
  component: pageWithMessages('operations', () => import('../features/operations/pages/SchedulerPage')),
});

const presets = createRoute({
  getParentRoute: () => shell,
  path: '/presets',
  component: pageWithMessages('editing', () => import('../features/people/pages/PresetsPage')),
});

const launch = createRoute({
  getParentRoute: () => shell,
  path: '/sessions/new',
  validateSearch: (search: Record<string, unknown>) => searchOf(draftOf(search)),
  component: pageWithMessages('launch', () => import('../features/launch/pages/LaunchPage')),
});

const services = createRoute({
  getParentRoute: () => shell,
  path: '/services',
  validateSearch: (search): { q?: string; sort?: string } => ({
    ...(textOf(search.q) === '' ? {} : { q: textOf(search.q) }),
    ...(textOf(search.sort) === '' ? {} : { sort: textOf(search.sort) }),
  }),
  component: pageWithMessages('services', () => import('../features/services/pages/ServicesPage')),
});

const newService = createRoute({
  getParentRoute: () => shell,
  path: '/services/new',
  validateSearch: (search: Record<string, unknown>) => serviceSearchOf(serviceDraftOf(search)),
  component: pageWithMessages('services', () => import('../features/services/pages/NewServicePage')),
});

const service = createRoute({
  getParentRoute: () => shell,
  path: '/services/$id',
  component: pageWithMessages('services', () => import('../features/services/pages/ServicePage')),
});

const serviceTab = createRoute({
  getParentRoute: () => shell,
  path: '/services/$id/$tab',
  validateSearch: (search): { page?: number | undefined; by?: UseGrouping; as?: Mode } => ({
    ...pageOf(search),
    ...(isUseGrouping(search.by) ? { by: search.by } : {}),
    ...(isMode(search.as) ? { as: search.as } : {}),
  }),
  component: pageWithMessages('services', () => import('../features/services/pages/ServicePage')),
});

const usage = createRoute({
  getParentRoute: () => shell,
  path: '/usage',
  validateSearch: (search): { of?: 'all' } => (search.of === 'all' ? { of: 'all' } : {}),
  component: pageWithMessages('usage', () => import('../features/usage/pages/UsagePage')),
});

const projectUsage = createRoute({
  getParentRoute: () => shell,
  path: '/usage/projects',
  validateSearch: (search): { month?: string; project?: string; from?: string; to?: string } =>
    textsOf(search, 'month', 'project', 'from', 'to'),
  component: pageWithMessages('usage', () => import('../features/usage/pages/ProjectUsagePage')),
});

const queue = createRoute({
  getParentRoute: () => shell,
  path: '/queue',
  validateSearch: (search): { group?: string; page?: number | undefined } => ({
    ...(textOf(search.group) === '' ? {} : { group: textOf(search.group) }),
    ...pageOf(search),
  }),
  component: pageWithMessages('queue', () => import('../features/queue/pages/QueuePage')),
});

const fleet = createRoute({
  getParentRoute: () => shell,
  path: '/fleet',
  validateSearch: (search): { view?: string; by?: string; q?: string } => ({
    ...(textOf(search.view) === '' ? {} : { view: textOf(search.view) }),
    ...(textOf(search.by) === '' ? {} : { by: textOf(search.by) }),
    ...(textOf(search.q) === '' ? {} : { q: textOf(search.q) }),
  }),
  component: pageWithMessages('fleet', () => import('../features/fleet/pages/FleetPage')),
});

const agent = createRoute({
  getParentRoute: () => shell,
  path: '/fleet/$id',
  component: pageWithMessages('fleet', () => import('../features/fleet/pages/AgentPage')),
});

// Within the shell, so that the navigation is there and the address is told to nobody who has not logged in.
const unknown = createRoute({ getParentRoute: () => shell, path: '$', component: NotFound });

const tree = root.addChildren([
  login,
  tokenLogin,
  signUp,
  verifyEmail,
  bare.addChildren([terminal]),
  shell.addChildren([
    home,
    sessions,
    arrays,
    session,
    sessionTab,
    folders,
    shares,
    folder,
    folderFiles,
    launch,
    services,
    newService,
    service,
    serviceTab,
    usage,
    projectUsage,
    queue,
    fleet,
    agent,
    images,
    artifacts,
    artifact,
    claims,
    templates,
    account,
    people,
    projects,
    project,
    newUser,
    domain,
    policies,
    presets,
    scheduler,
    registries,
    storage,
    proxies,
    system,
    systemSettings,
    systemConfiguration,
    systemAudit,
    systemErrors,
    systemRoles,
    unknown,
  ]),
]);

/** Makes the router; `history` is that of the browser unless a test has another. */
export function makeRouter(client: QueryClient, history?: RouterHistory) {
  return createRouter({
    ...(history === undefined ? {} : { history }),
    routeTree: tree,
    basepath: prefix,
    context: { client },
    defaultPreload: 'intent',
    defaultErrorComponent: Failed,
    defaultNotFoundComponent: NotFound,
    scrollRestoration: true,
  });
}

declare module '@tanstack/react-router' {
  interface Register {
    router: ReturnType<typeof makeRouter>;
  }
}
