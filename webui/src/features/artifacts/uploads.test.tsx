import { screen, within } from '@testing-library/react';
import userEvent from '@testing-library/user-event';
import { beforeEach, describe, expect, it } from 'vitest';
import { openPage } from '../../testing/render';
import { FakeServer } from '../../testing/server';
import { filesOf } from './uploads';

const fileAt = (path: string, text = 'x') =>
  Object.defineProperty(new File([text], path.split('/').at(-1) ?? ''), 'webkitRelativePath', {
    value: path.includes('/') ? path : '',
  });

describe('the files of an upload', () => {
  it('have paths relative to a chosen directory, or their names', () => {
    const paths = (...chosen: string[]) => filesOf(chosen.map((path) => fileAt(path))).map(({ path }) => path);
    expect(paths('tiny/sub/b', 'tiny/a')).toEqual(['a', 'sub/b']);
    expect(paths('b', 'a', 'a')).toEqual(['a', 'b']);
  });
});

let server: FakeServer;
let role: string;
let registries: {
  id: string;
  name: string;
  type: string;
  url: string;
  viewers: string[];
  storages?: Record<string, string>;
  user_import_bytes?: number;
}[];
let stored: Map<string, string>;
const objects = 'http://storage.test/object';
beforeEach(() => {
  role = 'superadmin';
  server = new FakeServer();
  registries = [{ id: 'r', name: 'ours', type: 'local', url: '', viewers: [] }];
  stored = new Map();
  server.on('POST /server/login-check', () => ({
    body: { authenticated: true, data: { access_key: 'A', role, status: 'active' } },
  }));
  server.on('GET /func/artifacts', () => ({ body: { items: [], total_count: 0 } }));
  server.on('GET /func/artifact-registries', () => ({ body: registries }));
  server.on('GET /func/artifact-storages', () => ({
    body: [
      { host: 'local:models', backend: 'posix', capabilities: ['mount'], stages: ['download', 'archive'] },
      { host: 'local:s3', backend: 's3', capabilities: ['presign', 'of-tomorrow'], stages: [] },
    ],
  }));
  server.on('POST /func/artifacts/upload', (body) => ({
    body: {
      revision: { id: 'v', artifact_id: 'a' },
      files: (body.files as { path: string }[]).map(({ path }) => ({ path, url: `${objects}?token=${path}` })),
    },
  }));
});

async function fill() {
  await userEvent.type(await screen.findByLabelText('Name of the artifact'), 'acme/mine');
  await userEvent.type(screen.getByLabelText('Its version'), 'v1');
  await userEvent.upload(screen.getByLabelText('Choose files', { selector: 'input' }), [
    new File(['{"a":1}'], 'config.json', { type: 'application/json' }),
    new File(['[2]'], 'weights.json'),
  ]);
  expect(await screen.findByText('2 files, 10 B')).toBeDefined();
}

describe('an upload', () => {
  it('announces its files and sends each to its address', async () => {
    server.on('PUT /object', (body, request) => {
      expect([request.headers.get('content-type'), request.credentials]).toEqual([null, 'omit']);
      stored.set(new URL(request.url).search, JSON.stringify(body));
      return { status: 200 };
    });
    openPage('/artifacts', server);
    await fill();
    await userEvent.click(screen.getByRole('button', { name: 'Upload' }));
    const link = await screen.findByRole('link', { name: 'See the artifact' });
    expect(link.getAttribute('href')).toBe('/artifacts/a');
    expect(server.requests.find(({ key }) => key === 'POST /func/artifacts/upload')?.body).toEqual({
      registry: 'ours',
      artifact_type: 'MODEL',
      name: 'acme/mine',
      version: 'v1',
      description: '',
      files: [
        { path: 'config.json', size: 7 },
        { path: 'weights.json', size: 3 },
      ],
    });
    expect(Object.fromEntries(stored)).toEqual({ '?token=config.json': '{"a":1}', '?token=weights.json': '[2]' });
  });
  it('that breaks off says why, and may be sent again', async () => {
    let isFull = true;
    server.on('PUT /object', () =>
      isFull ? { status: 507, body: { type: 'x/storage-full', title: 'The storage is full.' } } : { status: 200 },
    );
    openPage('/artifacts', server);
    await fill();
    await userEvent.click(screen.getByRole('button', { name: 'Upload' }));
    expect(await screen.findByText('The storage is full.')).toBeDefined();
    expect(screen.queryByText('All files are there')).toBeNull();
    isFull = false;
    await userEvent.click(screen.getByRole('button', { name: 'Upload' }));
    expect(await screen.findByText('All files are there')).toBeDefined();
  });
  it('shows what is wrong at its field', async () => {
    server.on('POST /func/artifacts/upload', () => ({
      status: 400,
      body: { type: 'x/invalid-name', title: 'Refused', data: { version: 'malformed' } },
    }));
    openPage('/artifacts', server);
    await fill();
    await userEvent.click(screen.getByRole('button', { name: 'Upload' }));
    expect(await screen.findByText('malformed')).toBeDefined();
    expect(screen.getByLabelText('Its version').getAttribute('aria-invalid')).toBe('true');
  });
  it('needs a registry for uploads', async () => {
    registries = [{ id: 'h', name: 'hub', type: 'huggingface', url: 'https://hub.test', viewers: [] }];
    openPage('/artifacts', server);
    expect(await screen.findByText(/there is none: add one above/)).toBeDefined();
    expect(screen.queryByRole('button', { name: 'Upload' })).toBeNull();
  });
});

describe('a registry', () => {
  const hub = { id: 'h', name: 'hub', type: 'huggingface', url: 'https://hub.test', viewers: ['everyone'] };
  const change = async (type = 'huggingface', storages: Record<string, string> = {}) => {
    registries = [{ ...hub, type, storages, user_import_bytes: 1024 }];
    openPage('/artifacts', server);
    await userEvent.click(await screen.findByRole('button', { name: 'Change hub' }));
    return within(await screen.findByRole('dialog', { name: 'Change hub' }));
  };
  it('is changed in what was typed, and in nothing else', async () => {
    server.on('PATCH /func/artifact-registries/hub', () => ({ body: registries[0] }));
    const dialog = await change();
    await userEvent.type(dialog.getByLabelText('Token'), 'hf_new');
    await userEvent.clear(dialog.getByLabelText('Largest import of a user'));
    await userEvent.type(dialog.getByLabelText('Largest import of a user'), 'much');
    await userEvent.click(dialog.getByRole('button', { name: 'Save' }));
    expect(dialog.getByText('An amount such as 20g.')).toBeDefined();
    await userEvent.clear(dialog.getByLabelText('Largest import of a user'));
    await userEvent.type(dialog.getByLabelText('Largest import of a user'), '2k');
    await userEvent.click(dialog.getByRole('button', { name: 'Save' }));
    await expect.poll(() => screen.queryByRole('dialog')).toBeNull();
    expect(server.requests.filter(({ key }) => key.startsWith('PATCH')).map(({ body }) => body)).toEqual([
      { credentials: { token: 'hf_new' }, user_import_bytes: 2048 },
    ]);
  });
  it('is given storages by stage, and loses them', async () => {
    server.on('PATCH /func/artifact-registries/hub', () => ({ body: registries[0] }));
    const dialog = await change('huggingface', { archive: 'gone:old' });
    expect(dialog.getByLabelText<HTMLSelectElement>('Keeps in').value).toBe('gone:old');
    expect(await dialog.findAllByRole('option', { name: 'local:s3' })).toHaveLength(3);
    await userEvent.selectOptions(dialog.getByLabelText('Downloads to'), 'local:s3');
    await userEvent.selectOptions(dialog.getByLabelText('Keeps in'), 'What the settings say');
    await userEvent.click(dialog.getByRole('button', { name: 'Save' }));
    await expect.poll(() => screen.queryByRole('dialog')).toBeNull();
    expect(server.requests.filter(({ key }) => key.startsWith('PATCH')).map(({ body }) => body)).toEqual([
      { storages: { download: 'local:s3' } },
    ]);
  });
  it('of another installation takes both keys or neither', async () => {
    const dialog = await change('reservoir');
    await userEvent.type(dialog.getByLabelText('Secret key'), 'secret');
    await userEvent.click(dialog.getByRole('button', { name: 'Save' }));
    expect(dialog.getByText('Both keys, or neither.')).toBeDefined();
    expect(server.requests.some(({ key }) => key.startsWith('PATCH'))).toBe(false);
  });
  it('says at the field what is refused', async () => {
    server.on('PATCH /func/artifact-registries/hub', () => ({
      status: 400,
      body: { type: 'x/invalid', title: 'Refused', data: { url: 'not an address' } },
    }));
    const dialog = await change();
    await userEvent.type(dialog.getByLabelText('Address'), '/x');
    await userEvent.click(dialog.getByRole('button', { name: 'Save' }));
    expect(await dialog.findByText('not an address')).toBeDefined();
  });
});

describe('the storages of artifacts', () => {
  it.each([
    ['superadmin', true],
    ['monitor', false],
  ])('are shown to a %s, who uploads: %s', async (name, uploads) => {
    role = name;
    openPage('/artifacts', server);
    const table = within(await screen.findByRole('table', { name: 'Storages of artifacts' }));
    expect(table.getByRole('row', { name: 'local:models posix be mounted download, archive' })).toBeDefined();
    expect(table.getByRole('row', { name: 'local:s3 s3 give temporary URLs, of-tomorrow –' })).toBeDefined();
    expect(screen.queryByText('Upload an artifact') !== null).toBe(uploads);
  });
  it('are not asked for by users', async () => {
    role = 'user';
    openPage('/artifacts', server);
    expect(await screen.findByText('There are no artifacts')).toBeDefined();
    expect(server.requests.some(({ key }) => key.includes('artifact-storages'))).toBe(false);
  });
});
