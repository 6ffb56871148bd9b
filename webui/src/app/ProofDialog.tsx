import { Modal } from '@mantine/core';
import { lazy, Suspense, useSyncExternalStore } from 'react';
import { useTranslation } from 'react-i18next';
import { proofs } from '../api/proof';
import { Waiting } from '../components/Query';
import { loadMessages } from '../i18n';

const Title = () => useTranslation('proof').t('title');
const Content = lazy(async () => {
  const [{ ProofForm }] = await Promise.all([import('./proof/ProofForm'), loadMessages('proof')]);
  return {
    default: () => (
      <>
        <Modal.Title mb="sm">
          <Title />
        </Modal.Title>
        <ProofForm />
      </>
    ),
  };
});

/** Asks again who is there, over the page and its dialogs; what was refused is then done without another click. */
export function ProofDialog() {
  const isWanted = useSyncExternalStore(proofs.subscribe, proofs.isWanted);
  return (
    <Modal opened={isWanted} onClose={() => proofs.refuse()} withCloseButton={false} zIndex={900}>
      {isWanted && (
        <Suspense fallback={<Waiting rows={3} />}>
          <Content />
        </Suspense>
      )}
    </Modal>
  );
}
