// An operator's day: a policy that is made, changed and deleted, a new user with policies, an agent that is drained under a session, a session that waits and says
// why, a frozen installation; and everything of it in the audit log.
import assert from 'node:assert/strict';
import { checkAccessibility, journey, login, openPage, screenshot, settle, site } from './browser.mjs';

const person = 'with-policies@example.com';
const waiting = 'waits-for-an-agent';

/** Sends a request as the page would, and returns its status and reply. */
function ask(page, method, path, body) {
  return page.evaluate(
    async ([verb, target, content]) => {
      const response = await fetch(target, {
        method: verb,
        headers: { 'Content-Type': 'application/json' },
        body: content === undefined ? null : JSON.stringify(content),
      });
      return { status: response.status, body: await response.json().catch(() => null) };
    },
    [method, path, body],
  );
}

const enqueue = (page, name) =>
  ask(page, 'POST', '/func/session', {
    image: 'python',
    session_name: name,
    enqueueOnly: true,
    config: { resources: { cpu: 1, mem: '256m' } },
  });

/** Makes a policy of keypairs, changes it, and deletes it. */
async function changePolicies(page) {
  const policy = 'visitors';
  await page.goto('/policies');
  const table = page.getByRole('region', { name: 'Limits of keypairs' });
  const dialog = page.getByRole('dialog');
  await table.getByRole('button', { name: 'New policy of keypairs' }).click();
  await dialog.getByLabel('Name', { exact: true }).fill(policy);
  await dialog.getByLabel('Limits', { exact: true }).fill('cpu=2\nmem=much');
  await dialog.getByRole('button', { name: 'Create' }).click();
  await dialog.getByText('Each line is a slot, an equals sign and an amount.').waitFor();
  assert.deepEqual(await checkAccessibility(page, 'the dialog of a policy'), []);
  await screenshot(page, 'operator-new-policy');
  await dialog.getByLabel('Limits', { exact: true }).fill('cpu=2\nmem=1g');
  await dialog.getByRole('button', { name: 'Create' }).click();
  const row = table.getByRole('row').filter({ hasText: policy });
  await row.getByText('1 GiB').waitFor();
  await row.getByRole('button', { name: 'Change' }).click();
  await dialog.getByLabel('Longest life of a session').fill('8h');
  await dialog.getByRole('button', { name: 'Save' }).click();
  await row.getByText('8 h').waitFor();
  await screenshot(page, 'operator-policies');
  await row.getByRole('button', { name: 'Delete' }).click();
  await dialog.getByLabel(`Type ${policy} to confirm`).fill(policy);
  await dialog.getByRole('button', { name: 'Delete' }).click();
  await row.waitFor({ state: 'detached' });
  for (const operation of ['create', 'modify', 'delete']) {
    await page.goto(`/system/audit?text=${operation}_keypair_resource_policy`);
    await page.getByRole('row').filter({ hasText: policy }).first().waitFor();
  }
}

await journey(async (browser) => {
  const { page, expectNoFaults } = await openPage(browser, { expects: [/POST .*\/func\/session$/] });
  await login(page, site.admin, '/people/new');
  await page.getByLabel('E-mail address').fill(person);
  await page.getByLabel('First password', { exact: true }).fill('a first passphrase');
  await page.getByLabel('Policy of the keypair').selectOption('default');
  await screenshot(page, 'operator-new-user');
  await page.getByRole('button', { name: 'Create the user' }).click();
  await page.waitForURL(/\/people\?q=/); // a page that is left earlier takes its request with it
  await page.goto(`/people?tab=keypairs&q=${person}`);
  await page.getByRole('row', { name: new RegExp(person) }).waitFor();

  await changePolicies(page);

  await page.goto('/fleet?view=table');
  await page.locator('a[href*="/fleet/"]').first().click();
  await page.getByRole('button', { name: 'Drain' }).click();
  await page
    .getByRole('dialog')
    .getByText(/on it goe?s? on until (it ends|they end)\./)
    .waitFor();
  await settle(page);
  assert.deepEqual(await checkAccessibility(page, 'the dialog of a drain'), []);
  await screenshot(page, 'operator-drain');
  await page.getByRole('dialog').getByRole('button', { name: 'Drain' }).click();
  await page.getByText('Drained').first().waitFor();
  const agent = page.url();

  const { status, body } = await enqueue(page, waiting);
  assert.ok(status < 300, JSON.stringify(body));
  await page.goto('/queue');
  await page.getByRole('link', { name: waiting }).waitFor();
  await page.getByRole('button', { name: /^Why/ }).first().click();
  await page
    .getByText(/0 of 1|none of/i)
    .first()
    .waitFor();
  await screenshot(page, 'operator-queue');
  await page.goto('/scheduler');
  await page.getByRole('link', { name: waiting }).waitFor();
  await page.getByText('No agent of this group takes sessions.').waitFor();
  await screenshot(page, 'operator-scheduler-drained');

  await page.goto(agent);
  await page.getByRole('button', { name: 'Take sessions again' }).click();
  await page.getByRole('button', { name: 'Drain' }).waitFor();
  await page.goto(`/sessions/${body.sessionId}`);
  await page.getByText('RUNNING', { exact: true }).first().waitFor(); // by the stream of events

  await page.goto('/system');
  await page.getByRole('button', { name: 'Freeze' }).click();
  await settle(page);
  assert.deepEqual(await checkAccessibility(page, 'the dialog of a freeze'), []);
  await screenshot(page, 'operator-freeze');
  await page.getByRole('dialog').getByRole('button', { name: 'Freeze' }).click();
  await page.getByText('frozen', { exact: true }).first().waitFor();
  await page.getByRole('dialog').waitFor({ state: 'detached' });
  assert.deepEqual(await checkAccessibility(page, 'a frozen installation'), []);
  assert.ok((await enqueue(page, 'never-made')).status >= 400, 'a frozen installation takes no sessions');
  await page.getByRole('button', { name: 'Take sessions again' }).click();
  await page.getByText('running', { exact: true }).first().waitFor();
  await ask(page, 'DELETE', `/func/session/${waiting}?forced=true`);

  await page.goto(`/system/audit?email=${site.admin.email}`);
  await page.getByText('modify_agent').first().waitFor();
  await page.getByText('create_user').first().waitFor();
  await page.getByLabel('Only what was refused').check();
  await page
    .getByText(/frozen/)
    .first()
    .waitFor();
  await screenshot(page, 'operator-audit-refused');
  expectNoFaults();
});
