import { describe, expect, it } from 'vitest';
import { environOf, environText } from '../../api/environ';
import { changeDraftOf, changeOf } from './changes';
import type { ServiceDetails } from './queries';

const service = {
  name: 'my-service',
  is_public: false,
  image: 'python',
  model_id: 'f1',
  model_version: '3',
  model_definition_path: null,
  served_model: null,
  runtime_variant: 'vllm',
  startup_command: 'serve --fast',
  port: 8000,
  environ: { A: '1' },
  secret_names: ['API_KEY'],
  resources: { mem: '1g', cpu: '1' },
  tag: 'mine',
} as unknown as ServiceDetails;
const before = changeDraftOf(service, { f1: 'tiny' });

describe('a change of a service', () => {
  it('begins with what the service has', () => {
    expect(before).toMatchObject({ model: 'tiny', command: 'serve --fast', port: '8000', environ: 'A=1', tag: 'mine' });
    expect(changeOf(before, before)).toEqual({ body: {}, wrong: [] });
  });
  it('clears what was emptied, and keeps secrets', () => {
    const draft = { ...before, version: '', command: ' ', port: '', environ: '', amounts: {}, tag: '' };
    expect(changeOf(draft, before)).toEqual({
      body: { model_version: null, startup_command: null, tag: null, port: null, environ: {}, resources: null },
      wrong: [],
    });
  });
  it('sends what differs', () => {
    const draft = { ...before, environ: 'A=2\nB=', amounts: { cpu: '2', mem: '1g' }, port: '9000' };
    expect(changeOf(draft, before).body).toEqual({
      environ: { A: '2', B: '' },
      resources: { cpu: '2', mem: '1g' },
      port: 9000,
    });
  });
  it('refuses what cannot be read, and what cannot be empty', () => {
    expect(changeOf({ ...before, name: '', environ: 'no variable', port: 'x' }, before).wrong).toEqual([
      'name',
      'port',
      'environ',
    ]);
  });
});

describe('an environment', () => {
  it.each<Record<string, string>>([{}, { A: '1', B: 'x=y' }, { A: 'several\nlines', B: '2' }])(
    'is the same after the form: %j',
    (environ) => expect(environOf(environText(environ))).toEqual(environ),
  );
  it.each(['{"A": 1}', '{"A"', '{"A": "1"} x', 'A'])('is refused: %s', (text) => expect(environOf(text)).toBeNull());
});
