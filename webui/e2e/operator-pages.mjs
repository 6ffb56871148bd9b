// Every page of operators, in both themes and languages and at two widths, with what it shows when there is something.
import assert from 'node:assert/strict';
import {
  checkAccessibility,
  expectNothingCut,
  journey,
  login,
  openPage,
  screenshot,
  settle,
  site,
} from './browser.mjs';

const pages = [
  '/presets',
  '/scheduler',
  '/registries',
  '/storage',
  `/storage?owner=${site.user.email}`,
  '/proxies',
  '/system',
  '/system/settings?of=all',
  '/system/configuration',
  '/system/configuration?at=volumes',
  '/system/audit',
  '/system/errors',
  '/system/roles',
  '/people/new',
  '/usage/projects',
];
/** Reports an error full of script, and makes a preset, so that their pages have something to show. */
async function prepare(page) {
  const statuses = await page.evaluate(async () => {
    const post = async (path, body) => {
      const headers = { 'Content-Type': 'application/json' };
      return (await fetch(path, { method: 'POST', headers, body: JSON.stringify(body) })).status;
    };
    const slots = JSON.stringify({ cpu: '2', mem: '1g' });
    return [
      await post('/func/logs/error', {
        severity: 'error',
        source: 'cli',
        message: '<img src=x onerror=window.__hacked=1>',
        traceback: '<script>window.__hacked=1</script>',
      }),
      await post('/func/admin/gql', {
        query: `mutation ($s: JSONString!) {
          create_resource_preset(name: "two-cores", props: { resource_slots: $s }) { ok msg } }`,
        variables: { s: slots },
      }),
    ];
  });
  assert.deepEqual(statuses, [200, 200]);
}

/** Changes the preset; a refusal is at its field. Returns the broken rules of accessibility. */
async function changePreset(page) {
  await page.goto('/presets');
  await page.getByRole('button', { name: 'Change: two-cores' }).click();
  const dialog = page.getByRole('dialog');
  await dialog.getByLabel('Devices').fill('model ==');
  await dialog.getByLabel('Shared memory').fill('96m');
  await dialog.getByRole('button', { name: 'Save' }).click();
  await page.locator('textarea[aria-invalid=true]').waitFor();
  await screenshot(page, 'presets-refused');
  const violations = await checkAccessibility(page, 'the dialog of a preset');
  await dialog.getByLabel('Devices').fill('');
  await dialog.getByRole('button', { name: 'Save' }).click();
  await page.getByRole('cell', { name: '96 MiB' }).waitFor();
  return violations;
}

/** Returns the page of the first agent. */
function agentPage(page) {
  return page.evaluate(async () => `/fleet/${(await (await fetch('/func/resource/fleet')).json()).agents[0][0]}`);
}

/** Withholds a device and gives it back, and looks at what a drain asks. Returns the broken rules of accessibility. */
async function operateDevice(page) {
  await page.goto(await agentPage(page));
  const operate = page.getByRole('button', { name: /^Operate / }).first();
  const dialog = page.getByRole('dialog');
  const act = async (name) => {
    await operate.click();
    await page.getByRole('menuitem', { name, exact: true }).click();
  };
  await act('Drain');
  await dialog.getByLabel(/^Type .* to confirm$/).waitFor();
  await settle(page);
  await screenshot(page, 'agent-drain-device');
  const violations = await checkAccessibility(page, 'the dialog of a drain of a device');
  await dialog.getByRole('button', { name: 'Cancel' }).click();
  await act('Cordon');
  await dialog.getByLabel('Reason').fill('a loud fan');
  await dialog.getByRole('button', { name: 'Cordon' }).click();
  await page.getByText(/^Cordon: .* is done$/).waitFor();
  await page
    .getByRole('cell', { name: /cordoned: a loud fan/ })
    .first()
    .waitFor();
  await act('Use again');
  await dialog.getByRole('button', { name: 'Use again' }).click();
  await page.getByText(/^Use again: .* is done$/).waitFor();
  await page
    .getByRole('cell', { name: /cordoned: a loud fan/ })
    .first()
    .waitFor({ state: 'detached' });
  await page.getByRole('button', { name: 'Move' }).click();
  await dialog.getByLabel('Resource group').waitFor();
  await settle(page);
  violations.push(...(await checkAccessibility(page, 'the dialog of another resource group')));
  return violations;
}

/** Sets a key of the shared configuration and removes it. Returns the broken rules of accessibility. */
async function configure(page) {
  await page.goto('/system/configuration');
  await page.getByRole('button', { name: 'New key' }).click();
  const dialog = page.getByRole('dialog');
  await dialog.getByLabel('Key', { exact: true }).fill('journey/noise/level');
  await dialog.getByLabel('Value').fill('<img src=x onerror=window.__hacked=1>');
  await settle(page);
  const violations = await checkAccessibility(page, 'the dialog of a key');
  await dialog.getByRole('button', { name: 'Save' }).click();
  await page.getByRole('link', { name: 'journey/' }).click();
  await page.getByRole('link', { name: 'noise/' }).click();
  await page.getByText('<img src=x').waitFor();
  await page.getByRole('link', { name: 'All keys' }).click();
  await page.getByRole('button', { name: 'Remove journey' }).click();
  await dialog.getByLabel('Type journey to confirm').fill('journey');
  await screenshot(page, 'configuration-remove');
  await dialog.getByRole('button', { name: 'Remove' }).click();
  await page.getByRole('link', { name: 'journey/' }).waitFor({ state: 'detached' });
  await page.goto('/system');
  await page.getByRole('button', { name: 'Recount' }).click();
  await page.getByText('The records are right').waitFor();
  return violations;
}

const nameOf = (path) =>
  path
    .replaceAll(/[0-9a-f-]{36}/g, 'one')
    .replaceAll(/[^a-z]+/g, '-')
    .replaceAll(/^-|-$/g, '');

await journey(async (browser) => {
  const violations = [];
  let isPrepared = false;
  for (const scheme of ['light', 'dark']) {
    for (const width of [1280, 360]) {
      const language = scheme === 'dark' ? 'ko-KR' : 'en-US';
      const { page, context, expectNoFaults } = await openPage(browser, { scheme, width, language });
      await login(page, site.admin);
      if (!isPrepared) {
        await prepare(page);
        violations.push(...(await changePreset(page)), ...(await operateDevice(page)), ...(await configure(page)));
      }
      isPrepared = true;
      const project = await page.evaluate(async () => {
        const query = 'query { groups { id name } }';
        const headers = { 'Content-Type': 'application/json' };
        const reply = await fetch('/func/admin/gql', { method: 'POST', headers, body: JSON.stringify({ query }) });
        return (await reply.json()).data.groups.find(({ name }) => name === 'default').id;
      });
      const today = new Date().toISOString().slice(0, 10);
      const usage = `/usage/projects?project=${project}&from=${today}&to=${today}`;
      for (const path of [...pages, `/projects/${project}`, usage, await agentPage(page)]) {
        await page.goto(path);
        await settle(page);
        // Of four combinations two have each theme and each width: the rules take most of the time.
        if ((scheme === 'light') === (width === 1280))
          violations.push(...(await checkAccessibility(page, `${nameOf(path)} ${scheme} ${width}`)));
        await screenshot(page, `${nameOf(path)}-${scheme}-${width}`);
        await expectNothingCut(page, path, ...(width === 1280 ? [1024] : []));
      }
      assert.equal(await page.evaluate(() => window.__hacked), undefined);
      expectNoFaults();
      await context.close();
    }
  }
  assert.deepEqual(violations, []);
});
