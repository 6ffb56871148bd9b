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
  '/system/audit',
  '/system/errors',
  '/system/roles',
  '/people/new',
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
        violations.push(...(await changePreset(page)));
      }
      isPrepared = true;
      const project = await page.evaluate(async () => {
        const query = 'query { groups { id name } }';
        const headers = { 'Content-Type': 'application/json' };
        const reply = await fetch('/func/admin/gql', { method: 'POST', headers, body: JSON.stringify({ query }) });
        return (await reply.json()).data.groups.find(({ name }) => name === 'default').id;
      });
      for (const path of [...pages, `/projects/${project}`]) {
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
