import { Button, Code, CopyButton, Group, Stack, Text, Textarea } from '@mantine/core';
import { useState } from 'react';
import { useTranslation } from 'react-i18next';
import { asProblem } from '../../../api/problems';
import { Card } from '../../../components/Card';
import { Confirm } from '../../../components/Confirm';
import { Copy } from '../../../components/Copy';
import { FormDialog } from '../../../components/FormDialog';
import { Notice } from '../../../components/Notice';
import { Query } from '../../../components/Query';
import { useNewSshKey, useSshKey, useUploadSshKey } from '../queries';
import { sshKeyFault } from '../rules';

function UploadDialog({ onClose }: { onClose: () => void }) {
  const { t } = useTranslation('account');
  const upload = useUploadSshKey();
  const [key, setKey] = useState('');
  const [isTouched, setTouched] = useState(false);
  const fault = sshKeyFault(key);
  const refused = upload.isError ? asProblem(upload.error) : null;
  const atField = refused !== null && 'pubkey' in refused.fields ? refused.detail || refused.title : null;
  return (
    <FormDialog
      title={t('ssh.uploadTitle')}
      action={t('ssh.uploadAction')}
      isBusy={upload.isPending}
      error={atField === null ? refused : null}
      onSubmit={() => {
        setTouched(true);
        if (fault === null) upload.mutate(key.trim(), { onSuccess: onClose });
      }}
      onClose={onClose}
    >
      <Text>{t('ssh.uploadLoses')}</Text>
      <Textarea
        label={t('ssh.publicKey')}
        description={t('ssh.publicKeyHint')}
        placeholder="ssh-ed25519 AAAA..."
        data-autofocus
        rows={4}
        spellCheck={false}
        value={key}
        error={isTouched && fault !== null ? t(`ssh.fault.${fault}`) : atField}
        onChange={(event) => {
          setKey(event.currentTarget.value);
          upload.reset();
        }}
      />
    </FormDialog>
  );
}

/** The key that opens the sessions of the person: generated, or one of their own. */
export function SshCard() {
  const { t } = useTranslation('account');
  const query = useSshKey();
  const generate = useNewSshKey();
  const [asks, setAsks] = useState(false);
  const [uploads, setUploads] = useState(false);
  const issued = generate.data;
  return (
    <Card title={t('ssh.title')}>
      <Query query={query}>
        {({ ssh_public_key: key }) => (
          <Stack gap="sm">
            {key === '' ? (
              <Text c="dimmed">{t('ssh.none')}</Text>
            ) : (
              <Group gap={4} align="start" wrap="nowrap">
                <Code block flex={1}>
                  {key}
                </Code>
                <Copy value={key} label={t('ssh.copy')} />
              </Group>
            )}
            {issued && (
              <Notice tone="wait" title={t('ssh.once')} role="status">
                <CopyButton value={issued.ssh_private_key}>
                  {({ copied, copy }) => (
                    <Button size="xs" onClick={copy}>
                      {copied ? t('ssh.copied') : t('ssh.copyPrivate')}
                    </Button>
                  )}
                </CopyButton>
              </Notice>
            )}
            <Group gap="xs">
              <Button variant="default" onClick={() => setAsks(true)}>
                {t('ssh.generate')}
              </Button>
              <Button variant="default" onClick={() => setUploads(true)}>
                {t('ssh.upload')}
              </Button>
            </Group>
          </Stack>
        )}
      </Query>
      {uploads && <UploadDialog onClose={() => setUploads(false)} />}
      <Confirm
        isOpen={asks}
        title={t('ssh.confirm')}
        action={t('ssh.generate')}
        isDangerous={false}
        isBusy={generate.isPending}
        error={generate.error}
        onConfirm={() => generate.mutate(undefined, { onSuccess: () => setAsks(false) })}
        onClose={() => setAsks(false)}
      >
        <Text>{t('ssh.loses')}</Text>
      </Confirm>
    </Card>
  );
}
