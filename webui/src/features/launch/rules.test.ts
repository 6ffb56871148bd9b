import { describe, expect, it } from 'vitest';
import { commandOf, programOf } from '../../api/forms/reproduce';
import { shellWord } from '../../api/shell';
import { draftOf, emptyDraft, searchOf } from './draft';
import {
  amountOf,
  arrayOf,
  bodyOf,
  changesOf,
  exceeded,
  faultsOf,
  isIndices,
  largest,
  rareCount,
  refusalsOf,
  requestOf,
  sortByRoom,
  sortByVerdict,
  verdictTone,
} from './rules';

const draft = {
  ...emptyDraft,
  image: 'python',
  name: 'my-own',
  amounts: { cpu: '2', mem: '1g', 'cuda.device': '0' },
  size: 2,
  mounts: ['data'],
};

describe('the draft in the address', () => {
  it('is the same after a round trip', () => {
    const full = {
      ...draft,
      type: 'batch' as const,
      command: 'echo 1,2',
      array: '1-9%2',
      mode: 'multi-node' as const,
      count: 3,
    };
    expect(draftOf({ ...searchOf(full) })).toEqual(full);
  });

  it('says nothing of what has its default', () => {
    expect(searchOf(emptyDraft)).toEqual({});
  });

  it.each([
    [{ size: 'many', count: -3, type: 'odd', mode: 7 }, emptyDraft],
    [
      { size: 99_999, count: 1_000 },
      { ...emptyDraft, size: 1024, count: 100 },
    ],
    [{ r: 'cpu,=3,mem=1g' }, { ...emptyDraft, amounts: { mem: '1g' } }],
  ])('reads %o without failing', (search, expected) => {
    expect(draftOf(search)).toEqual(expected);
  });
});

describe('an array', () => {
  it.each(['1-1000', '0-99:5', '1,3,7-9', '1-10%4', '3', ' 1, 2 '])('has the indices %s', (text) =>
    expect(isIndices(text.trim())).toBe(true),
  );
  it.each(['', 'a', '1-', '%4', '1-9%', '1-9%0', '1;rm', '1-9:0'])('has no indices %s', (text) =>
    expect(isIndices(text)).toBe(false),
  );
  it('is of batch sessions only', () => {
    expect(arrayOf({ ...draft, array: '1-9' })).toBe('');
    expect(arrayOf({ ...draft, type: 'batch', array: ' 1-9 ' })).toBe('1-9');
  });
  it('is submitted by the command line, and created by the client library', () => {
    const request = requestOf({ ...draft, type: 'batch', command: "echo 'a'", array: '1-9%2' });
    expect(commandOf(request)).toBe(
      `backend.ai submit -t my-own --array 1-9%2 -r cpu=2 -r mem=1g --cluster-size 2 -m data python ${shellWord("echo 'a'")}`,
    );
    expect(programOf(request)).toContain('api.SessionArray.create(\n        "python",\n        "1-9%2",\n');
    expect(programOf(request)).not.toContain('type_=');
  });
});

describe('the request', () => {
  it('has what was asked for, and no slot of which nothing is wanted', () => {
    expect(bodyOf(draft)).toMatchObject({
      image: 'python',
      clusterSize: 2,
      enqueueOnly: true,
      config: { resources: { cpu: '2', mem: '1g' }, mounts: ['data'] },
    });
  });

  it.each([emptyDraft, { ...draft, type: 'batch' as const, command: ' ' }])(
    'is not there before it is complete',
    (it) => {
      expect(bodyOf(it)).toBeNull();
    },
  );

  it('reads as a command that a shell takes apart again', () => {
    expect(commandOf(requestOf({ ...draft, type: 'batch', command: "echo 'a b'" }))).toBe(
      "backend.ai start -t my-own --type batch -c 'echo '\\''a b'\\''' -r cpu=2 -r mem=1g --cluster-size 2 -m data python",
    );
    expect(programOf(requestOf({ ...draft, name: 'a"b' }))).toContain(
      '        name="a\\"b",\n        resources={"cpu": "2", "mem": "1g"},',
    );
    expect(shellWord('$(rm -rf /)')).toBe("'$(rm -rf /)'");
  });
});

describe('quantities', () => {
  it.each([
    ['4', 4],
    ['1.5g', 1.5 * 2 ** 30],
    ['256m', 256 * 2 ** 20],
    ['', Number.NaN],
    ['much', Number.NaN],
    ['-1', Number.NaN],
  ])('%s is %d', (text, amount) => {
    expect(amountOf(text)).toBe(amount);
  });

  const limits = { policy: 8, group: 20, agent: 4 };
  it.each([
    [4, 1, true, []],
    [5, 1, true, ['agent']],
    [3, 2, true, ['agent']],
    [3, 2, false, []],
    [5, 2, false, ['agent', 'policy']],
  ])('%d of %d kernels, together: %s', (amount, kernels, together, names) => {
    expect(exceeded(amount, kernels, together, limits)).toEqual(names);
  });

  it('has a largest amount that exceeds nothing', () => {
    expect(largest(2, true, limits)).toBe(2);
    expect(largest(4, false, limits)).toBe(2);
    expect(exceeded(largest(2, true, limits), 2, true, limits)).toEqual([]);
  });
});

it('waits have three looks', () => {
  expect(verdictTone({ verdict: 'now', remedy: null })).toBe('good');
  expect(verdictTone({ verdict: 'waits', remedy: 'time' })).toBe('busy');
  expect(verdictTone({ verdict: 'waits', remedy: 'others' })).toBe('wait');
  expect(verdictTone({ verdict: 'never', remedy: 'change' })).toBe('bad');
});

it('presets that start now come first', () => {
  const presets = ['never', 'waits', undefined, 'now'].map((verdict) => ({ name: verdict ?? 'asked', verdict }));
  expect(sortByVerdict(presets).map((preset) => preset.name)).toEqual(['now', 'waits', 'never', 'asked']);
});

it('presets with enough free come before the others, each kind by name', () => {
  const presets = [
    { name: 'gpu-10', allocatable: false },
    { name: 'gpu-2', allocatable: false },
    { name: 'small', allocatable: true },
  ];
  expect(sortByRoom(presets).map(({ name }) => name)).toEqual(['small', 'gpu-2', 'gpu-10']);
});

describe('the options of a session', () => {
  const full = {
    ...emptyDraft,
    image: 'python',
    type: 'batch' as const,
    command: 'job',
    env: 'A=1\nB=x y',
    mounts: ['data', 'models'],
    paths: { models: '/m,1:a%' },
    readOnly: ['data'],
    devices: 'memory >= 40g\nmodel == "H100"',
    variants: 'nvidia::cc::8.0',
    shmem: '64m',
    claim: 'mine',
    tag: 'sweep',
    timeout: '2h',
    starts: '1h',
    depends: 'first, second',
    priority: '0',
    bootstrap: 'echo hi\n',
    preopen: '8888, 9999',
    architecture: 'x86_64',
    runtime: 'crun',
    owner: 'AKIA',
    agents: 'i-1,i-2',
    plugins: 'fpga.image=fft.bit\nfpga.fast=true\nnpu.cores=2',
    domain: 'lab',
    keep: true,
    restartable: true,
  };

  it('are the same after a round trip through the address, with those that are not in it', () => {
    expect(draftOf({ ...searchOf(full) }, { env: full.env, bootstrap: full.bootstrap })).toEqual(full);
  });

  it('are in no address if they often have secrets, nor read from one', () => {
    expect(JSON.stringify(searchOf(full))).not.toMatch(/A=1|echo hi/);
    expect(draftOf({ env: 'A=1', bootstrap: 'echo hi' })).toEqual(emptyDraft);
  });

  it('are in the body that is tried and sent', () => {
    expect(bodyOf(full)).toEqual({
      image: 'python',
      type: 'batch',
      startupCommand: 'job',
      clusterSize: 1,
      clusterMode: 'single-node',
      enqueueOnly: true,
      reuseIfExists: false,
      tag: 'sweep',
      batchTimeout: '2h',
      starts_at: '1h',
      dependencies: ['first', 'second'],
      priority: 0,
      bootstrap_script: 'echo hi\n',
      architecture: 'x86_64',
      runtimeClass: 'crun',
      owner_access_key: 'AKIA',
      domain: 'lab',
      config: {
        resources: {},
        mounts: ['data', 'models'],
        mount_map: { models: '/m,1:a%' },
        mount_options: { data: { permission: 'ro' } },
        environ: { A: '1', B: 'x y' },
        resource_opts: { shmem: '64m', preemptible: 'false', restartable: 'true' },
        device_requests: ['memory >= 40g', 'model == "H100"'],
        variant_requirements: ['nvidia::cc::8.0'],
        claim: 'mine',
        preopen_ports: [8888, 9999],
        agentList: ['i-1', 'i-2'],
        plugin_options: { fpga: { image: 'fft.bit', fast: true }, npu: { cores: 2 } },
      },
    });
  });

  it('are in the command', () => {
    expect(commandOf(requestOf({ ...full, paths: { models: '/m' } }))).toBe(
      "printf %s 'echo hi\n' | backend.ai start --type batch -c job --claim mine --variant nvidia::cc::8.0 " +
        "--device-request 'memory >= 40g' --device-request 'model == \"H100\"' -m data::ro -m models:/m " +
        "-e A=1 -e 'B=x y' --resource-opts shmem=64m --resource-opts preemptible=false --resource-opts restartable=true " +
        '--tag sweep --batch-timeout 2h --starts-at 1h --depends first --depends second --priority 0 ' +
        '--bootstrap-script /dev/stdin --preopen 8888,9999 --architecture x86_64 --runtime-class crun ' +
        '--owner AKIA --assign-agent i-1,i-2 --plugin-option fpga.image=fft.bit --plugin-option fpga.fast=true ' +
        '--plugin-option npu.cores=2 --domain lab python',
    );
    expect(commandOf(requestOf({ ...emptyDraft, mounts: ['a'], paths: { a: '/x:y' }, readOnly: ['a'] }))).toContain(
      '-m source=a,target=/x:y,perm=ro',
    );
  });

  it('of plugins stay texts in the command where they would be read as JSON', () => {
    expect(commandOf(requestOf({ ...emptyDraft, plugins: 'fpga.image="2"\nfpga.mode=a b' }))).toContain(
      `--plugin-option ${shellWord('fpga.image="2"')} --plugin-option ${shellWord('fpga.mode=a b')}`,
    );
  });

  it('are in the program', () => {
    const program = programOf(requestOf(full));
    for (const line of [
      'mount_map={"models":"/m,1:a%"}',
      'mount_options={"data":{"permission":"ro"}}',
      'envs={"A":"1","B":"x y"}',
      'resource_opts={"shmem":"64m","preemptible":"false","restartable":"true"}',
      'batch_timeout="2h"',
      'dependencies=["first","second"]',
      'priority=0',
      'bootstrap_script="echo hi\\n"',
      'preopen_ports=[8888,9999]',
      'assign_agent=["i-1","i-2"]',
      'plugin_options={"fpga":{"image":"fft.bit","fast":True},"npu":{"cores":2}}',
      'domain_name="lab"',
    ]) {
      expect(program).toContain(`        ${line},\n`);
    }
  });

  it('of batch sessions are left out of interactive ones, and those of mounts that are gone', () => {
    const draft = { ...full, type: 'interactive' as const, mounts: [] };
    expect(bodyOf(draft)).not.toHaveProperty('batchTimeout');
    expect(bodyOf(draft)?.config).toMatchObject({ resource_opts: { shmem: '64m', preemptible: 'false' } });
    expect(bodyOf(draft)?.config).not.toHaveProperty('mount_map');
    expect(bodyOf(draft)?.config).not.toHaveProperty('mount_options');
    expect(rareCount(draft)).toBe(16);
    expect(rareCount(full)).toBe(18);
  });

  it.each([
    ['env', 'A'],
    ['priority', 'high'],
    ['preopen', '80a'],
    ['plugins', 'fpga=fft.bit'],
    ['plugins', 'fpga.image'],
  ] as const)('make no request while %s is %s', (name, text) => {
    expect(faultsOf({ ...full, [name]: text })).toEqual([name]);
    expect(bodyOf({ ...full, [name]: text })).toBeNull();
  });

  it('have what the manager says about them at their fields', () => {
    const fields = { 'config.device_requests': 'malformed' };
    expect(refusalsOf({ fields, detail: 'memory > x: not an amount' })).toEqual({
      devices: 'memory > x: not an amount',
    });
    expect(
      refusalsOf({ fields: { 'session.tag': 'too long', 'config.preopen_ports[0]': 'a port' }, detail: 'both' }),
    ).toEqual({ tag: 'too long', preopen: 'a port' });
    expect(refusalsOf({ fields: { tags: 'x' }, detail: '' })).toEqual({});
  });

  it('of a preset take the place of those of the draft', () => {
    const preset = { name: 'gpu', resource_slots: { cpu: '1' }, allocatable: true };
    expect(changesOf({ ...preset, shared_memory: 2 ** 26, device_requests: ['memory >= 40g', 'x'] })).toEqual({
      amounts: { cpu: '1' },
      shmem: '64m',
      devices: 'memory >= 40g\nx',
    });
    expect(changesOf({ ...preset, shared_memory: null, device_requests: [] })).toMatchObject({
      shmem: '',
      devices: '',
    });
  });
});
