import { screen, within } from '@testing-library/react';
import userEvent from '@testing-library/user-event';
import { beforeEach, describe, expect, it } from 'vitest';
import { openPage } from '../../../testing/render';
import { FakeServer } from '../../../testing/server';
import { boundsChangeOf, boundsDraftOf, ruleBodyOf, ruleDraftOf, type Scaling } from './drafts';

const id = '11111111-2222-4333-8444-555555555555';
const path = `/func/services/${id}/scaling`;
const details = {
  endpoint_id: id,
  name: 'my-service',
  status: 'healthy',
  reason: 'all-ready',
  model_id: 'f1',
  model_version: null,
  model_definition_path: 'model-definition.yaml',
  image: 'python',
  active_routes: [],
  revisions: [],
  runtime_variant: 'custom',
  served_model: null,
  startup_command: 'serve',
  port: null,
  environ: { OLD: '1' },
  secret_names: ['API_KEY'],
  resources: { cpu: '1' },
  tag: 'mine',
  service_endpoint: null,
  is_public: false,
  resource_group: 'default',
  policy: {},
};
const rule = {
  id: 'r1',
  metric_source: 'proxy',
  metric_name: 'load',
  threshold: '8.0',
  comparator: 'greater-than',
  step_size: 1,
  cooldown_seconds: 300,
  min_replicas: null,
  max_replicas: 4,
  created_at: '2026-01-01T00:00:00Z',
  last_triggered_at: null,
};
const target = {
  metric: 'load',
  metric_source: 'proxy',
  target: 16,
  stable_s: 90,
  panic_s: 6,
  panic_ratio: 2,
  max_up: 1000,
  max_down: 2,
  tolerance: 0.1,
};
const off: Scaling = {
  desired_session_count: 2,
  is_enabled: false,
  min_replicas: null,
  max_replicas: null,
  idle_s: null,
  down_delay_s: null,
  target: null,
  rules: [],
  last_decision: null,
};
const on: Scaling = {
  ...off,
  is_enabled: true,
  min_replicas: 0,
  max_replicas: 8,
  idle_s: 600,
  down_delay_s: 300,
  target,
  rules: [rule],
  last_decision: {
    at: '2026-01-01T00:00:00Z',
    before: 1,
    desired: 2,
    reason: 'target',
    explanation: '32 open requests need 2 replicas',
    inputs: { load: 32, 'load <b>': null },
  },
};

let server: FakeServer;
beforeEach(() => {
  server = new FakeServer();
  server.on(`GET /func/services/${id}`, () => ({ body: details }));
  server.on(`GET ${path}`, () => ({ body: on }));
});
const sent = (key: string) => server.requests.filter((request) => request.key === key).map(({ body }) => body);
async function fill(within_: HTMLElement, label: string, text: string) {
  const field = within(within_).getByRole('textbox', { name: label });
  await userEvent.clear(field);
  await userEvent.type(field, text);
}

describe('drafts', () => {
  it('say only what differs, and keep what the form does not have', () => {
    const draft = boundsDraftOf(on);
    expect(boundsChangeOf(draft, on)).toEqual({ body: {}, wrong: [] });
    expect(boundsChangeOf({ ...draft, max: '4', target: '2.5', idle: '1h' }, on).body).toEqual({
      max_replicas: 4,
      idle_s: 3600,
      target: { ...target, target: 2.5 },
    });
    expect(boundsChangeOf({ ...draft, hasTarget: false }, on).body).toEqual({ target: null });
    expect(boundsChangeOf({ ...boundsDraftOf(off), hasTarget: true, target: '3' }, off).body).toEqual({
      target: { target: 3, metric: 'load', metric_source: 'proxy' },
    });
  });
  it('name what cannot be read', () => {
    const draft = { ...boundsDraftOf(on), min: '-1', max: 'x', idle: 'soon', downDelay: '', target: '0', metric: ' ' };
    expect(boundsChangeOf(draft, on).wrong).toEqual(['min', 'max', 'idle', 'downDelay', 'target', 'metric']);
    const other = { ...ruleDraftOf(null), threshold: '', step: '1.5', cooldown: '', min: 'x' };
    expect(ruleBodyOf(other).wrong).toEqual(['threshold', 'step', 'cooldown', 'min']);
  });
  it('of a rule are its inverse', () => {
    const { body, wrong } = ruleBodyOf(ruleDraftOf(rule));
    expect(wrong).toEqual([]);
    const { id: _, created_at: __, last_triggered_at: ___, ...others } = rule;
    expect(body).toEqual(others);
  });
});

describe('autoscaling', () => {
  it('shows bounds, target, rules and the last decision with its inputs', async () => {
    openPage(`/services/${id}/scaling`, server);
    expect(await screen.findByText('2 of 0 to 8')).toBeDefined();
    expect(screen.getByText('16 for each replica: Open and waiting requests')).toBeDefined();
    expect(screen.getByRole('cell', { name: 'Open and waiting requests greater than 8.0' })).toBeDefined();
    expect(screen.getByText('32 open requests need 2 replicas')).toBeDefined();
    expect(screen.getByText('load <b>')).toBeDefined();
  });
  it('begins it, with what the manager refuses at its field', async () => {
    server.on(`GET ${path}`, () => ({ body: off }));
    server.on(`PATCH ${path}`, () => ({
      status: 400,
      body: { title: 'invalid', msg: 'max_replicas is at most 8.', data: { max_replicas: 'out of range' } },
    }));
    openPage(`/services/${id}/scaling`, server);
    await userEvent.click(await screen.findByRole('button', { name: 'Begin autoscaling' }));
    const dialog = await screen.findByRole('dialog');
    await fill(dialog, 'Replicas at most', '99');
    await userEvent.click(within(dialog).getByRole('button', { name: 'Save' }));
    expect(await within(dialog).findByText('max_replicas is at most 8.')).toBeDefined();
    expect(within(dialog).queryByRole('alert')).toBeNull();
    expect(sent(`PATCH ${path}`)).toEqual([{ max_replicas: 99 }]);
    server.on(`PATCH ${path}`, () => ({ body: on }));
    await fill(dialog, 'Replicas at most', '8');
    await userEvent.click(within(dialog).getByRole('button', { name: 'Save' }));
    await expect.poll(() => screen.queryByRole('dialog')).toBeNull();
  });
  it('adds a rule of another source, and changes one', async () => {
    server.on(`POST ${path}/rules`, () => ({ status: 201, body: rule }));
    server.on(`PATCH ${path}/rules/r1`, () => ({ body: rule }));
    openPage(`/services/${id}/scaling`, server);
    await userEvent.click(await screen.findByRole('button', { name: 'New rule' }));
    let dialog = await screen.findByRole('dialog', { name: 'New rule' });
    await userEvent.selectOptions(within(dialog).getByRole('combobox', { name: 'Whose metric' }), 'kernel');
    await userEvent.click(within(dialog).getByRole('button', { name: 'Save' }));
    expect(within(dialog).getByRole('textbox', { name: 'Metric' }).getAttribute('aria-invalid')).toBe('true');
    await fill(dialog, 'Metric', 'cpu_util');
    await fill(dialog, 'Threshold', '80');
    await userEvent.click(within(dialog).getByRole('button', { name: 'Save' }));
    const created = {
      metric_name: 'cpu_util',
      metric_source: 'kernel',
      comparator: 'greater-than',
      threshold: '80',
      step_size: 1,
      cooldown_seconds: 300,
      min_replicas: null,
      max_replicas: null,
    };
    await expect.poll(() => sent(`POST ${path}/rules`)).toEqual([created]);
    await expect.poll(() => screen.queryByRole('dialog')).toBeNull();
    await userEvent.click(screen.getByRole('button', { name: /^Change: Open and waiting/ }));
    dialog = await screen.findByRole('dialog', { name: 'Change the rule' });
    await fill(dialog, 'Replicas', '-1');
    await userEvent.click(within(dialog).getByRole('button', { name: 'Save' }));
    await expect.poll(() => sent(`PATCH ${path}/rules/r1`)[0]?.step_size).toBe(-1);
  });
  it('removes a rule, and ends, after questions', async () => {
    server.on(`DELETE ${path}/rules/r1`, () => ({ body: { success: true } }));
    server.on(`DELETE ${path}`, () => ({ body: off }));
    openPage(`/services/${id}/scaling`, server);
    await userEvent.click(await screen.findByRole('button', { name: /^Remove: Open and waiting/ }));
    let dialog = await screen.findByRole('dialog', { name: 'Remove this rule?' });
    await userEvent.click(within(dialog).getByRole('button', { name: 'Remove' }));
    await expect.poll(() => sent(`DELETE ${path}/rules/r1`)).toHaveLength(1);
    await expect.poll(() => screen.queryByRole('dialog')).toBeNull();
    await userEvent.click(screen.getByRole('button', { name: 'End autoscaling' }));
    dialog = await screen.findByRole('dialog', { name: 'End autoscaling?' });
    expect(dialog.textContent).toContain('1 rule is removed');
    await userEvent.click(within(dialog).getByRole('button', { name: 'End it' }));
    await expect.poll(() => sent(`DELETE ${path}`)).toHaveLength(1);
  });
});

describe('a change of a service', () => {
  const service = `/func/services/${id}`;
  beforeEach(() => {
    server.graphql('images', () => ({ images: [{ name: 'python', tag: '3', aliases: ['python'] }] }));
    server.on('GET /func/folders', () => ({
      body: [
        { id: 'f1', name: 'tiny' },
        { id: 'f2', name: 'larger' },
      ],
    }));
    server.on('GET /func/services/_/runtimes', () => ({ body: { runtimes: [{ name: 'custom', title: 'custom' }] } }));
    server.on(`GET ${service}/why`, () => ({ status: 404, body: { title: 'none' } }));
    server.on('GET /func/config/resource-slots/details', () => ({
      body: { cpu: { slot_name: 'cpu', human_readable_name: 'CPU', description: 'CPU', slot_type: 'count' } },
    }));
  });
  it('sends what differs, and says when that is a new revision', async () => {
    server.on(`PATCH ${service}`, () => ({ body: details }));
    openPage(`/services/${id}`, server);
    await userEvent.click(await screen.findByRole('button', { name: 'Change' }));
    const dialog = await screen.findByRole('dialog', { name: 'Change my-service' });
    await fill(dialog, 'Name', 'renamed');
    expect(within(dialog).queryByText('This rolls out a new revision.')).toBeNull();
    await userEvent.click(within(dialog).getByRole('combobox', { name: 'Model folder' }));
    await userEvent.click(await screen.findByRole('option', { name: 'larger' }));
    await fill(dialog, 'Version of the model', '2');
    await fill(dialog, 'Environment', 'A=1\n B=x=y');
    expect(within(dialog).getByText(/Secrets stay as they are: API_KEY/)).toBeDefined();
    await within(dialog).findByRole('textbox', { name: 'CPU' });
    await fill(dialog, 'CPU', '2');
    for (const name of ['Tag', 'Command']) {
      await userEvent.clear(within(dialog).getByRole('textbox', { name }));
    }
    expect(within(dialog).getByText('This rolls out a new revision.')).toBeDefined();
    await userEvent.click(within(dialog).getByRole('button', { name: 'Save' }));
    await expect
      .poll(() => sent(`PATCH ${service}`))
      .toEqual([
        {
          name: 'renamed',
          model: 'larger',
          model_version: '2',
          environ: { A: '1', B: 'x=y' },
          resources: { cpu: '2' },
          startup_command: null,
          tag: null,
        },
      ]);
    await expect.poll(() => screen.queryByRole('dialog')).toBeNull();
  });
  it('tells at the field what cannot be read, and what the manager refuses', async () => {
    server.on(`PATCH ${service}`, () => ({
      status: 400,
      body: { title: 'invalid', msg: 'A name has 4 characters.', data: { name: 'too short' } },
    }));
    openPage(`/services/${id}`, server);
    await userEvent.click(await screen.findByRole('button', { name: 'Change' }));
    const dialog = await screen.findByRole('dialog');
    await fill(dialog, 'Environment', 'oops');
    await fill(dialog, 'Port', 'x');
    await fill(dialog, 'Name', 'abc');
    await userEvent.click(within(dialog).getByRole('button', { name: 'Save' }));
    for (const name of ['Environment', 'Port'])
      expect(within(dialog).getByRole('textbox', { name }).getAttribute('aria-invalid')).toBe('true');
    expect(sent(`PATCH ${service}`)).toHaveLength(0);
    await userEvent.clear(within(dialog).getByRole('textbox', { name: 'Environment' }));
    await userEvent.clear(within(dialog).getByRole('textbox', { name: 'Port' }));
    await userEvent.click(within(dialog).getByRole('button', { name: 'Save' }));
    expect(await within(dialog).findByText('A name has 4 characters.')).toBeDefined();
    expect(within(dialog).queryByRole('alert')).toBeNull();
  });
  it('sends its routes again', async () => {
    server.on(`POST ${service}/sync`, () => ({ body: { success: true } }));
    openPage(`/services/${id}`, server);
    await userEvent.click(await screen.findByRole('button', { name: 'Send routes' }));
    const dialog = await screen.findByRole('dialog', { name: 'Send the routes of my-service again?' });
    await userEvent.click(within(dialog).getByRole('button', { name: 'Send them' }));
    await expect.poll(() => sent(`POST ${service}/sync`)).toHaveLength(1);
  });
});
