import { screen, waitFor } from '@testing-library/react';
import userEvent from '@testing-library/user-event';
import { beforeEach, describe, expect, it } from 'vitest';
import { openPage } from '../../testing/render';
import { FakeServer } from '../../testing/server';
import { countsOf, isImportable, linkOf, mountOf, percentOf, type Revision, sizeOf, toneOf } from './rules';

const revision = (version: string, status: string, other: Partial<Revision> = {}): Revision => ({
  id: `id-${version}`,
  artifact_id: 'a',
  version,
  status,
  status_info: null,
  status_changed: '2026-01-01T00:00:00Z',
  remote_status: null,
  size: null,
  file_count: null,
  digest: null,
  is_outdated: false,
  storage: null,
  progress: null,
  created_at: '2026-01-01T00:00:00Z',
  last_used: null,
  ...other,
});
const artifact = (revisions: Revision[]) => ({
  id: 'a',
  type: 'MODEL',
  name: 'acme/tiny',
  description: '',
  registry: 'hub',
  registry_type: 'huggingface',
  extra: {},
  restricted: false,
  viewers: null,
  scanned_at: '2026-01-01T00:00:00Z',
  created_at: '2026-01-01T00:00:00Z',
  revisions,
  readme: '<script>window.__hacked=1</script>',
});

describe('rules', () => {
  it('say what can be imported, and what has failed', () => {
    const failed = revision('v1', 'SCANNED', { status_info: 'no space' });
    expect([isImportable(failed), toneOf(failed)]).toEqual([true, 'bad']);
    expect(isImportable(revision('v1', 'AVAILABLE'))).toBe(false);
    expect(isImportable(revision('v1', 'AVAILABLE', { is_outdated: true }))).toBe(true);
    expect(toneOf(revision('v1', 'WORD_OF_TOMORROW'))).toBe('idle');
  });
  it('count, measure and name', () => {
    const revisions = [revision('v1', 'AVAILABLE', { size: 5 }), revision('v2', 'SCANNED', { size: 7 })];
    expect(countsOf({ revisions })).toEqual({ available: 1, total: 2 });
    expect([sizeOf({ revisions }), sizeOf({ revisions: [] })]).toEqual([7, null]);
    expect(percentOf({ progress: { phase: 'pull', current: 1, total: 4 } })).toBe(25);
    expect(percentOf({ progress: { phase: 'pull', current: 1, total: 0 } })).toBeNull();
    expect(mountOf('acme/tiny', 'v1')).toBe('artifact:acme/tiny@v1');
  });
});

describe('the store', () => {
  let server: FakeServer;
  beforeEach(() => {
    server = new FakeServer();
  });
  it('asks the server for what is filtered, and shows no registries to users', async () => {
    let asked = '';
    server.on('GET /func/artifacts', (_, request) => {
      asked = new URL(request.url).search;
      return { body: { items: [artifact([revision('v1', 'AVAILABLE')])], total_count: 60 } };
    });
    openPage('/artifacts?q=tiny&type=MODEL&page=2', server);
    expect((await screen.findByRole('link', { name: 'acme/tiny' })).getAttribute('href')).toContain('/artifacts/a');
    expect(asked).toBe('?limit=25&offset=25&search=tiny&artifact_type=MODEL');
    expect(screen.getByText('1 of 1')).toBeDefined();
    expect(screen.queryByText('Registries of artifacts')).toBeNull();
  });
  it('says that it is empty, and shows a refused import', async () => {
    server.on('GET /func/artifacts', () => ({ body: { items: [], total_count: 0 } }));
    server.on('POST /func/artifacts/fetch', () => ({
      status: 404,
      body: { type: 'x/not-found', title: 'Not found', detail: 'there is none', data: { registry: 'unknown' } },
    }));
    openPage('/artifacts', server);
    expect(await screen.findByText('There are no artifacts')).toBeDefined();
    await userEvent.type(screen.getByLabelText('Registry'), 'hub');
    await userEvent.type(screen.getByLabelText('Name'), 'acme/tiny');
    await userEvent.click(screen.getByRole('button', { name: 'Import' }));
    expect(await screen.findByText('there is none')).toBeDefined();
    expect(server.requests.at(-1)?.body).toEqual({ registry: 'hub', name: 'acme/tiny', version: null });
  });
  it('lets superadmins import a version, and shows a README as text', async () => {
    let status = 'SCANNED';
    server.on('POST /server/login-check', () => ({
      body: { authenticated: true, data: { access_key: 'A', role: 'superadmin', status: 'active' } },
    }));
    server.on('GET /func/artifacts/a', () => ({ body: artifact([revision('v1', status)]) }));
    server.on('POST /func/artifacts/import', () => {
      status = 'AVAILABLE';
      return { status: 202, body: { revisions: [] } };
    });
    openPage('/artifacts/a', server);
    expect(await screen.findByText('<script>window.__hacked=1</script>')).toBeDefined();
    await userEvent.click(screen.getByRole('button', { name: 'Import v1' }));
    const use = await screen.findByRole('link', { name: 'Use in a session: v1' });
    expect(decodeURIComponent(use.getAttribute('href') ?? '')).toContain('mounts=artifact:acme/tiny@v1');
    await waitFor(() => expect(screen.queryByRole('button', { name: 'Import v1' })).toBeNull());
  });
  it('makes links of files, and says why one is refused', async () => {
    const sha256 = 'a'.repeat(64);
    server.on('GET /func/artifacts/a', () => ({ body: artifact([revision('v1', 'AVAILABLE')]) }));
    server.on('GET /func/artifacts/revisions/id-v1/files', () => ({
      body: { files: ['a.bin', 'b.bin'].map((path) => ({ path, size: 5, sha256, url: '' })) },
    }));
    server.on('POST /func/artifacts/revisions/id-v1/presign', (body) =>
      (body.paths as string[])[0] === 'a.bin'
        ? { body: { files: [{ path: 'a.bin', size: 5, sha256, url: 'https://store.example/a.bin?token=x' }] } }
        : { status: 423, body: { title: 'The file is being moved.' } },
    );
    openPage('/artifacts/a?files=id-v1', server);
    await userEvent.click(await screen.findByRole('button', { name: 'Make a link of a.bin' }));
    const link = await screen.findByRole('link', { name: 'Download a.bin' });
    expect(link.getAttribute('href')).toBe('https://store.example/a.bin?token=x');
    expect(screen.getByRole('button', { name: 'Copy the link of a.bin' })).toBeDefined();
    await userEvent.click(screen.getByRole('button', { name: 'Make a link of b.bin' }));
    expect(await screen.findByText('The file is being moved.')).toBeDefined();
    expect(screen.queryByRole('link', { name: 'Download b.bin' })).toBeNull();
  });
  it('links nothing but addresses of the web', () => {
    for (const url of ['javascript:alert(1)', 'file:///etc/passwd', '', null]) expect(() => linkOf(url)).toThrow();
  });
});
