// Somebody serves a model by the form, sees why it is not ready yet, calls it with a token, promotes a canary, and ends it. Every part of
// the service is accessible in both themes, in both languages and on a phone.
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

const tabs = ['overview', 'replicas', 'revisions', 'tokens', 'usage', 'history'];

await journey(async (browser) => {
  const { page, expectNoFaults } = await openPage(browser, { expects: [/400 POST .*\/services\/_\/try/] });
  await login(page, site.user, '/services');
  await page.getByText('There are no model services yet').waitFor();

  // A trial tells at the field what is wrong.
  await page.goto(
    `/services/new?name=served&image=python&model=${site.model}&definition=absent.yaml&r=cpu%3D1,mem%3D256m`,
  );
  await page.getByRole('button', { name: 'Try it first' }).click();
  const definition = page.getByLabel('Model definition');
  await page.locator('input[aria-invalid=true]').waitFor();
  assert.equal(await definition.getAttribute('aria-invalid'), 'true');
  await screenshot(page, 'services-refused');

  await definition.fill('');
  await page.getByRole('button', { name: 'Create' }).click();
  await page.waitForURL(/\/services\/[0-9a-f-]{36}$/);
  const path = new URL(page.url()).pathname;
  await page.getByText('healthy', { exact: true }).first().waitFor();

  await page.getByRole('tab', { name: 'Tokens' }).click();
  await page.getByRole('button', { name: 'Make a token' }).click();
  const secret = (await page.getByRole('status').locator('pre').first().textContent()) ?? '';
  await page.goto(`/services?q=${encodeURIComponent('status == "healthy"')}&sort=user_email`);
  const row = page.getByRole('row').filter({ hasText: 'served' });
  assert.match((await row.textContent()) ?? '', /1 of 1 ready/);
  const url = /https?:\/\/[^\s]+?:\d+\/?/.exec((await row.textContent()) ?? '')?.[0] ?? '';
  const models = `${url.replace(/\/$/, '')}/v1/models`;
  assert.equal((await fetch(models)).status, 401);
  assert.equal((await fetch(models, { headers: { Authorization: `Bearer ${secret}` } })).status, 200);

  await page.goto(`${path}/tokens`);
  await page.getByRole('button', { name: 'Make a token' }).waitFor();
  assert.equal(await page.getByText(secret).count(), 0, 'a token is shown once');

  // A canary stays at its step until it is promoted.
  await page.goto(`${path}/revisions`);
  await page.getByRole('button', { name: 'Change the roll-out' }).click();
  const dialog = page.getByRole('dialog');
  await dialog.getByLabel('New revisions come').selectOption('canary');
  await dialog.getByLabel('Steps of the canary').fill('20%');
  assert.deepEqual(await checkAccessibility(page, 'the dialog of a roll-out'), []);
  await dialog.getByRole('button', { name: 'Save' }).click();
  await page.getByText('20 % until it is promoted').waitFor();
  const status = await page.evaluate(async (target) => {
    const headers = { 'Content-Type': 'application/json' };
    return (await fetch(target, { method: 'PATCH', headers, body: '{"environ": {"A": "1"}}' })).status;
  }, `/func${path}`);
  assert.equal(status, 200);
  await page.getByText('when you promote it').waitFor();
  await page.getByText('20 %', { exact: true }).waitFor();
  await screenshot(page, 'services-canary');
  await page.getByRole('button', { name: 'Promote' }).click();
  await dialog.getByRole('button', { name: 'Promote' }).click();
  await page.getByText('Nothing is being rolled out').waitFor();
  await page.getByText('100 %', { exact: true }).waitFor();

  const violations = [];
  for (const [scheme, width] of [
    ['light', 1280],
    ['dark', 360],
  ]) {
    const language = scheme === 'dark' ? 'ko-KR' : 'en-US';
    const other = await openPage(browser, { scheme, width, language });
    await login(other.page, site.user);
    for (const place of ['/services', '/services/new', ...tabs.map((tab) => `${path}/${tab}`)]) {
      await other.page.goto(place);
      await settle(other.page);
      const name = `${place.replace(path, 'service').replaceAll('/', '-').replace(/^-/, '')} ${scheme} ${width}`;
      violations.push(...(await checkAccessibility(other.page, name)));
      await screenshot(other.page, name.replaceAll(' ', '-'));
      await expectNothingCut(other.page, place, ...(width === 1280 ? [1024] : []));
    }
    other.expectNoFaults();
    await other.context.close();
  }
  assert.deepEqual(violations, []);

  await page.goto(path);
  await page.getByRole('button', { name: 'Destroy' }).click();
  await page.getByRole('dialog').getByRole('button', { name: 'Destroy' }).click();
  await page.getByText('destroyed', { exact: true }).first().waitFor();
  await page.getByRole('button', { name: 'Destroy' }).waitFor({ state: 'detached' });
  expectNoFaults();
});
