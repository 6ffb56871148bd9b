import { describe, expect, it } from 'vitest';
import { Problem } from '../../api/problems';
import { type ServiceDraft, serviceDraftOf, serviceSearchOf } from './draft';
import {
  bodyOf,
  callOf,
  commandOf,
  faultsOf,
  fieldErrorsOf,
  isRollingOut,
  pollIntervalOf,
  rareCount,
  sharesOf,
  toneOf,
  webAddressOf,
} from './rules';
import { trialFrom } from './trial';

const draft: ServiceDraft = {
  ...serviceDraftOf({}),
  name: 'my-service',
  model: 'tiny model',
  image: 'python',
  amounts: { cpu: '1', mem: '256m', 'cuda.device': '0' },
};

const rare: ServiceDraft = {
  ...draft,
  env: 'A=1',
  claim: 'gpus',
  port: '9000',
  version: '3',
  modelName: 'tiny',
  mount: '/m',
  architecture: 'x86_64',
  tag: 'mine',
  owner: 'AKIA',
  size: 2,
  mode: 'multi-node',
};

describe('the draft in the address', () => {
  it('comes back as it was', () => {
    const full: ServiceDraft = {
      ...draft,
      variant: 'vllm',
      replicas: 0,
      isPublic: true,
      command: 'serve --port {port}',
      claim: 'mine',
      port: '9000',
      size: 2,
      mode: 'multi-node',
      owner: 'AKIA',
    };
    expect(serviceDraftOf(serviceSearchOf(full) as Record<string, unknown>)).toEqual(full);
  });
  it('has no variables, which often have secrets, and reads none', () => {
    expect(serviceSearchOf({ ...draft, env: 'KEY=secret' })).not.toHaveProperty('env');
    expect(serviceDraftOf({ env: 'KEY=secret' })).toEqual(serviceDraftOf({}));
    expect(serviceDraftOf({}, { env: 'KEY=secret' }).env).toBe('KEY=secret');
  });
  it('is empty for defaults', () => expect(serviceSearchOf(serviceDraftOf({}))).toEqual({}));
  it('has defaults for what cannot be read', () =>
    expect(serviceDraftOf({ replicas: 'many', r: '=,cpu', name: { a: 1 }, public: 'maybe' })).toEqual(
      serviceDraftOf({}),
    ));
  it('bounds the replicas and takes no prototype for an amount', () => {
    expect(serviceDraftOf({ replicas: 1e9 }).replicas).toBe(1024);
    expect(serviceDraftOf({ replicas: -1 }).replicas).toBe(0);
    expect(Object.keys(serviceDraftOf({ r: '__proto__=1' }).amounts)).toEqual(['__proto__']);
  });
});

describe('bodyOf', () => {
  it('is null while something needed is missing', () => {
    for (const field of ['name', 'model', 'image']) expect(bodyOf({ ...draft, [field]: '' })).toBeNull();
  });
  it('has what was said and nothing else', () =>
    expect(bodyOf(draft)).toEqual({
      name: 'my-service',
      image: 'python',
      runtime_variant: 'custom',
      desired_session_count: 1,
      open_to_public: false,
      config: { model: 'tiny model', resources: { cpu: '1', mem: '256m' } },
    }));
  it('has the rarer options', () =>
    expect(bodyOf(rare)).toMatchObject({
      arch: 'x86_64',
      tag: 'mine',
      owner_access_key: 'AKIA',
      port: 9000,
      cluster_size: 2,
      cluster_mode: 'multi-node',
      config: {
        claim: 'gpus',
        environ: { A: '1' },
        model_name: 'tiny',
        model_version: '3',
        model_mount_destination: '/m',
      },
    }));
  it.each([
    [{ port: '80' }, ['port']],
    [{ port: '70000' }, ['port']],
    [{ port: '8o80' }, ['port']],
    [{ env: 'A' }, ['env']],
    [{ port: '1024', env: 'A=' }, []],
  ])('is null while %j cannot be read', (changes, faults) => {
    expect(faultsOf({ ...draft, ...changes })).toEqual(faults);
    expect(bodyOf({ ...draft, ...changes }) === null).toBe(faults.length > 0);
  });
  it('has the devices and the roll-out policy that were said', () => {
    const policy = JSON.stringify({ kind: 'blue-green', watch: '2m', hasGuard: false });
    const full = { ...draft, devices: 'memory >= 40g\n\n memory >= 16g ', variants: 'mock::model::X', policy };
    expect(bodyOf(full)).toMatchObject({
      policy: { kind: 'blue-green', watch_s: 120, guard: null },
      config: { device_requests: ['memory >= 40g', 'memory >= 16g'], variant_requirements: ['mock::model::X'] },
    });
    expect(commandOf(full)).toContain(
      "--device-request 'memory >= 40g' --device-request 'memory >= 16g' --variant mock::model::X " +
        `--policy '{"kind":"blue-green","watch_s":120,"guard":null}'`,
    );
    expect(serviceDraftOf(serviceSearchOf(full) as Record<string, unknown>)).toEqual(full);
    expect(faultsOf({ ...draft, policy: '{"kind":"canary","steps":"all"}' })).toEqual(['policy']);
  });
  it('counts the rarer options that are used', () => {
    expect(rareCount(draft)).toBe(0);
    expect(rareCount(rare)).toBe(11);
  });
});

describe('commandOf', () => {
  it('has the rarer options', () =>
    expect(commandOf(rare)).toBe(
      'backend.ai service create -t my-service --model-name tiny --model-version 3 --model-mount-destination /m ' +
        '--port 9000 --claim gpus --architecture x86_64 --tag mine --owner AKIA --cluster-size 2 ' +
        "--cluster-mode multi-node -e A=1 -r cpu=1 -r mem=256m python 'tiny model'",
    ));
  it('quotes what a shell would read', () =>
    expect(commandOf({ ...draft, command: "serve '$HOME'", isPublic: true, replicas: 2 })).toBe(
      "backend.ai service create -t my-service --startup-command 'serve '\\''$HOME'\\''' -r cpu=1 -r mem=256m --public python 'tiny model' 2",
    ));
});

describe('callOf', () => {
  const service = { url: 'http://127.0.0.1:1/', variant: 'custom', isPublic: false };
  it.each([
    [service, '', 'curl -H "Authorization: Bearer $TOKEN" http://127.0.0.1:1/'],
    [{ ...service, variant: 'vllm' }, 't0k', "curl -H 'Authorization: Bearer t0k' http://127.0.0.1:1/v1/models"],
    [{ ...service, isPublic: true }, '', 'curl http://127.0.0.1:1/'],
    [{ ...service, isPublic: true, url: 'http://h/;rm' }, '', "curl 'http://h/;rm/'"],
  ])('%j', (target, token, line) => expect(callOf(target, token)).toBe(line));
});

describe('fieldErrorsOf', () => {
  const problem = (fields: Record<string, string>) => new Problem({ title: 'What is wrong.', status: 400, fields });
  it.each([
    [{ 'config.mounts': 'no such folder: x' }, { model: 'What is wrong.' }],
    [{ 'config.resources.cpu': 'malformed' }, { amounts: 'What is wrong.' }],
    [
      { name: 'taken', startup_command: 'missing' },
      { name: 'taken', command: 'missing' },
    ],
    [{ 'config.scalingGroup': 'unknown' }, { group: 'What is wrong.' }],
    [{ 'config.claim': 'unknown' }, { claim: 'What is wrong.' }],
    [{ constructor: 'x', surge: 'y' }, {}],
    [
      { policy: 'y', 'config.device_requests': 'z' },
      { policy: 'y', devices: 'z' },
    ],
  ])('%j', (fields, errors) => expect(fieldErrorsOf(problem(fields))).toEqual(errors));
  it('is empty without a problem', () => expect(fieldErrorsOf(null)).toEqual({}));
});

describe('others', () => {
  it('shares are of the sum', () => {
    expect(sharesOf([1, 3])).toEqual([25, 75]);
    expect(sharesOf([0, 0])).toEqual([null, null]);
  });
  it('a status that nobody knows has no colour', () => {
    expect(toneOf('degraded')).toBe('warn');
    expect(toneOf('dancing')).toBe('idle');
  });
  it('asks often only for what changes soon', () => {
    expect(pollIntervalOf('healthy')).toBe(30_000);
    expect(pollIntervalOf('provisioning')).toBe(5_000);
  });
  it('rolls back what is on its way', () => {
    expect(['pending', 'rolling-out', 'active', 'failed'].map(isRollingOut)).toEqual([true, true, false, false]);
  });
  it('links to the web alone', () => {
    expect(webAddressOf('https://a.example/x')).toBe('https://a.example/x');
    for (const url of ['javascript:alert(1)', 'data:text/html,x', 'nonsense', null])
      expect(webAddressOf(url)).toBeNull();
  });
  it('reads the progress of a trial', () => {
    expect(trialFrom('bgtask_updated', '{"current_progress": 1, "total_progress": 3, "message": "m"}')).toEqual({
      state: 'running',
      step: 1,
      steps: 3,
      message: 'm',
    });
    expect(trialFrom('bgtask_failed', '{}')?.state).toBe('failed');
    expect(trialFrom('bgtask_done', 'broken')).toBeNull();
  });
});
