// What a user keeps between sessions, and what administrators do with it: a device claim that a session uses, a
// template started with changes, SSH keys; quotas, folders of everybody, keypairs, storage hosts of a domain, images.
import assert from 'node:assert/strict';
import { checkAccessibility, journey, login, openPage, screenshot, settle, site } from './browser.mjs';

const session = 'uses-the-claim';
const sshKey = 'ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIKUmmR0JXTOLsX9oTmj8AgHYwHXEAo4zsEbQZkNQZ9Rk me@home';

/** A claim gets devices for a session, keeps them after its end, and gives them back. */
async function keepDevices(page, slot) {
  const dialog = page.getByRole('dialog');
  await page.goto('/claims');
  await page.getByRole('button', { name: 'New claim' }).click();
  await dialog.getByLabel('Name', { exact: true }).fill('mine');
  await dialog.getByLabel('Accelerators').fill('cpu=1');
  await dialog.getByRole('button', { name: 'Create' }).click();
  await dialog.getByText(/^Amounts of accelerators such as/).waitFor();
  await dialog.getByLabel('Accelerators').fill(`${slot}=1`);
  const violations = await checkAccessibility(page, 'the dialog of a claim');
  await dialog.getByRole('button', { name: 'Create' }).click();
  await page.getByText('Holds nothing').first().waitFor();
  await page.goto(`/sessions/new?image=python&name=${session}&claim=mine&r=${encodeURIComponent('cpu=1,mem=256m')}`);
  await page.getByText('Starts now').first().waitFor();
  await page.getByRole('button', { name: 'Launch' }).click();
  await page.waitForURL(/\/sessions\/[0-9a-f-]{36}/);
  await page.getByText('RUNNING', { exact: true }).first().waitFor();
  const id = /[0-9a-f-]{36}/.exec(page.url())[0];

  await page.goto(`/sessions/${id}/metrics`);
  await page.getByLabel('Also those of the sandbox').check();
  await page
    .getByRole('table', { name: 'Processes' })
    .getByRole('cell', { name: /python/ })
    .first()
    .waitFor();
  await screenshot(page, 'belongings-processes');

  await page.goto('/claims');
  await page.getByText('In use').first().waitFor();
  await page
    .getByRole('link', { name: 'mine' })
    .or(page.getByRole('button', { name: 'mine' }))
    .first()
    .click();
  await page.getByRole('link', { name: session }).waitFor();
  await screenshot(page, 'belongings-claim-in-use');
  const status = await page.evaluate(
    async (name) => (await fetch(`/func/session/${name}?forced=true`, { method: 'DELETE' })).status,
    session,
  );
  assert.ok(status < 300, String(status));
  await page.getByText('Kept', { exact: true }).first().waitFor();
  await page.getByRole('button', { name: 'Release' }).click();
  await dialog.getByText(/^Others may get /).waitFor();
  await dialog.getByRole('button', { name: 'Release' }).click();
  await page.getByText('Holds nothing').first().waitFor();
  await page.getByRole('button', { name: 'Delete', exact: true }).click();
  await dialog.getByLabel('Type mine to confirm').fill('mine');
  await dialog.getByRole('button', { name: 'Delete' }).click();
  await page
    .getByText('There are no device claims')
    .or(page.getByText('Deleted', { exact: true }))
    .first()
    .waitFor();
  return violations;
}

/** A key of one's own, after a private one is refused; then a generated one. */
async function changeSshKey(page) {
  const dialog = page.getByRole('dialog');
  await page.goto('/account');
  await page.getByRole('button', { name: 'Use my own key' }).click();
  await dialog.getByLabel('Public key').fill('-----BEGIN OPENSSH PRIVATE KEY-----');
  await dialog.getByRole('button', { name: 'Use this key' }).click();
  await dialog.getByText(/^This is a private key/).waitFor();
  const violations = await checkAccessibility(page, 'the dialog of an SSH key');
  await dialog.getByLabel('Public key').fill(sshKey);
  await dialog.getByRole('button', { name: 'Use this key' }).click();
  await page.getByText(sshKey).waitFor();
  await page.getByRole('button', { name: 'Make a new key' }).click();
  await dialog.getByRole('button', { name: 'Make a new key' }).click();
  await page.getByText('The private key is shown only now. Keep it in a safe place.').waitFor();
  await page.getByText(sshKey).waitFor({ state: 'detached' });
  await screenshot(page, 'belongings-ssh');
  return violations;
}

/** A session from a template with another name and more memory. */
async function startWithChanges(page) {
  const dialog = page.getByRole('dialog');
  await page.goto('/templates?show=new');
  const text = page.getByLabel('Text of the template');
  const sample = await text.inputValue();
  await text.fill(sample.replace('my-template', 'base').replace('512m', '256m'));
  await page.getByRole('button', { name: 'Create the template' }).click();
  await page.getByRole('button', { name: 'Start with changes: base' }).click();
  await dialog.getByLabel('Name', { exact: true }).fill('changed-start');
  await dialog.getByLabel('Resources').fill('mem=much');
  const violations = await checkAccessibility(page, 'the dialog of a start from a template');
  await screenshot(page, 'belongings-template');
  await dialog.getByRole('button', { name: 'Start' }).click();
  await dialog.locator('[aria-invalid=true]').first().waitFor();
  await dialog.getByLabel('Resources').fill('mem=320m');
  await dialog.getByRole('button', { name: 'Start' }).click();
  await page.waitForURL(/\/sessions\/[0-9a-f-]{36}/);
  await page.getByText('RUNNING', { exact: true }).first().waitFor();
  await page.getByRole('heading', { level: 1, name: 'changed-start' }).waitFor();
  const status = await page.evaluate(
    async () => (await fetch('/func/session/changed-start?forced=true', { method: 'DELETE' })).status,
  );
  assert.ok(status < 300, String(status));
  return violations;
}

/** A folder of the user in the list of everybody's, and its quota. */
async function administrateFolders(page, folder) {
  const dialog = page.getByRole('dialog');
  await page.goto(`/folders?view=all&q=${folder}`);
  await page.getByRole('row', { name: new RegExp(`^${folder} ${site.user.email} .* Ready`) }).waitFor();
  await screenshot(page, 'belongings-everybodys-folders');
  const violations = await checkAccessibility(page, 'the folders of everybody');
  await page.getByRole('button', { name: `Give away ${folder}` }).click();
  await dialog.getByRole('textbox').fill('nobody@example.com');
  await dialog.getByRole('button', { name: 'Change the owner' }).click();
  await dialog.locator('[aria-invalid=true]').waitFor();
  violations.push(...(await checkAccessibility(page, 'the dialog of an owner')));
  await dialog.getByRole('button', { name: 'Cancel' }).click();
  await page.goto(`/storage?owner=${site.user.email}`);
  await page.getByLabel('New limit').fill('much');
  await page.getByText('This is no amount.').waitFor();
  await page.getByLabel('New limit').fill('3g');
  await page.getByRole('button', { name: 'Set', exact: true }).click();
  const limit = page.getByText(/(^|\s)3 GiB/).first(); // not the end of 37.3 GiB, which the disk may have in use
  await limit.waitFor();
  await screenshot(page, 'belongings-quota');
  await page.getByRole('button', { name: 'As the policy says' }).click();
  await limit.waitFor({ state: 'detached' });
  return violations;
}

/** A further keypair of the user: made, refused from then on, given a new secret, deleted. */
async function administrateKeypairs(page) {
  const dialog = page.getByRole('dialog');
  await page.goto(`/people?q=${site.user.email}`);
  await page.getByRole('button', { name: `More actions: ${site.user.email}` }).click();
  await page.getByRole('menuitem', { name: 'New keypair' }).click();
  await dialog.getByRole('button', { name: 'New keypair' }).click();
  await dialog.getByText('The secret is shown only now.').waitFor();
  const violations = await checkAccessibility(page, 'the secrets of a keypair');
  const key = /AKIA\w{16}/.exec(await dialog.innerText())[0];
  await page.goto(`/people?tab=keypairs&q=${site.user.email}`);
  await page.getByRole('button', { name: `Deactivate ${key}` }).click();
  await dialog.getByRole('button', { name: 'Deactivate' }).click();
  await page.getByRole('button', { name: `Activate ${key}` }).waitFor();
  const act = async (name) => {
    await page.getByRole('button', { name: `More actions: ${key}` }).click();
    await page.getByRole('menuitem', { name, exact: true }).click();
  };
  await act('New secret');
  await dialog.getByRole('button', { name: 'New secret' }).click();
  await dialog.getByText(`New secret of ${key}`).waitFor();
  await page.keyboard.press('Escape');
  await dialog.waitFor({ state: 'detached' });
  await act('Delete');
  await dialog.getByLabel(`Type ${key} to confirm`).fill(key);
  await screenshot(page, 'belongings-keypair');
  await dialog.getByRole('button', { name: 'Delete' }).click();
  await page.getByRole('button', { name: `Activate ${key}` }).waitFor({ state: 'detached' });
  return violations;
}

/** What may be done on a storage host: the form of the domain. Nothing of it is saved. */
async function lookAtHosts(page) {
  const dialog = page.getByRole('dialog');
  await page.goto('/people?tab=domains');
  await page.getByRole('button', { name: 'Change: default' }).click();
  await dialog
    .getByLabel(/^What may be done on /)
    .first()
    .waitFor();
  await settle(page);
  await screenshot(page, 'belongings-hosts');
  const violations = await checkAccessibility(page, 'the dialog of a domain with storage hosts');
  await dialog.getByRole('button', { name: 'Cancel' }).click();
  return violations;
}

/** What is asked before an image is removed from agents. It stays. */
async function lookAtImage(page) {
  const dialog = page.getByRole('dialog');
  await page.goto('/registries');
  await page
    .getByRole('button', { name: /^Act on .*bash/ })
    .first()
    .click();
  await page.getByRole('menuitem', { name: 'Remove from agents' }).click();
  await dialog.getByLabel('Agents').fill('*');
  const violations = await checkAccessibility(page, 'the dialog of a removal from agents');
  await screenshot(page, 'belongings-image');
  await dialog.getByRole('button', { name: 'Cancel' }).click();
  return violations;
}

await journey(async (browser) => {
  const violations = [];
  const { page, expectNoFaults } = await openPage(browser, { expects: [/^400 POST .*create-from-template$/] });
  await login(page, site.user);
  const slot = await page.evaluate(async () => {
    const slots = await (await fetch('/func/config/resource-slots/details')).json();
    return Object.keys(slots).find((name) => name.endsWith('.device'));
  });
  violations.push(...(await keepDevices(page, slot)), ...(await changeSshKey(page)), ...(await startWithChanges(page)));
  const folder = 'counted';
  await page.goto('/folders');
  await page.getByRole('button', { name: 'New folder' }).click();
  await page.getByLabel('Name', { exact: true }).fill(folder);
  await page.getByRole('button', { name: 'Create' }).click();
  await page.getByRole('heading', { level: 1, name: folder }).waitFor();
  expectNoFaults();

  const admin = await openPage(browser, { expects: [/^404 POST .*change-ownership$/] });
  await login(admin.page, site.admin);
  violations.push(...(await administrateFolders(admin.page, folder)), ...(await administrateKeypairs(admin.page)));
  violations.push(...(await lookAtHosts(admin.page)), ...(await lookAtImage(admin.page)));
  assert.deepEqual(violations, []);
  admin.expectNoFaults();
});
