package options

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"math"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	certutil "k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
)

const (
	certificateLifetime = 365 * 24 * time.Hour
	// certificateReserve is how much of its lifetime a certificate must have left to
	// be used again.
	certificateReserve = 30 * 24 * time.Hour

	adminUser  = "policy-admin"
	adminGroup = "system:masters"
)

// standaloneCerts are the certificates of a server without a cluster: an own CA,
// which clients are authenticated by as well, a serving certificate and a client
// certificate of an administrator. They are kept in the data directory.
type standaloneCerts struct {
	dir string
}

func (c standaloneCerts) caFile() string          { return filepath.Join(c.dir, "ca.crt") }
func (c standaloneCerts) file(name string) string { return filepath.Join(c.dir, name) }

// ensure makes the certificates, unless there are some that are good for hosts.
func (c standaloneCerts) ensure(hosts []string) error {
	if err := os.MkdirAll(c.dir, 0o700); err != nil {
		return fmt.Errorf("make the directory of certificates: %w", err)
	}
	if c.valid(hosts) {
		return nil
	}
	caKey, caKeyPEM, err := newKey()
	if err != nil {
		return err
	}
	now := time.Now()
	ca, err := certutil.NewSelfSignedCACert(certutil.Config{CommonName: fmt.Sprintf("policy-apiserver-ca@%d", now.Unix())}, caKey)
	if err != nil {
		return fmt.Errorf("make the CA certificate: %w", err)
	}
	serving := &x509.Certificate{
		Subject:     pkix.Name{CommonName: "policy-apiserver"},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	for _, host := range hosts {
		if ip := net.ParseIP(host); ip != nil {
			serving.IPAddresses = append(serving.IPAddresses, ip)
		} else {
			serving.DNSNames = append(serving.DNSNames, host)
		}
	}
	admin := &x509.Certificate{
		Subject:     pkix.Name{CommonName: adminUser, Organization: []string{adminGroup}},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	// The CA comes last: valid() refuses a set that was left half-written.
	if err := os.Remove(c.caFile()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove the old CA certificate: %w", err)
	}
	for name, template := range map[string]*x509.Certificate{"serving": serving, "admin": admin} {
		if err := c.issue(name, template, ca, caKey, now); err != nil {
			return fmt.Errorf("make the %s certificate: %w", name, err)
		}
	}
	if err := os.WriteFile(c.file("ca.key"), caKeyPEM, 0o600); err != nil {
		return fmt.Errorf("write the CA key: %w", err)
	}
	if err := os.WriteFile(c.caFile(), encodeCertificate(ca), 0o600); err != nil {
		return fmt.Errorf("write the CA certificate: %w", err)
	}
	return nil
}

func (c standaloneCerts) issue(name string, template, ca *x509.Certificate, caKey crypto.Signer, now time.Time) error {
	key, keyPEM, err := newKey()
	if err != nil {
		return err
	}
	if template.SerialNumber, err = rand.Int(rand.Reader, big.NewInt(math.MaxInt64)); err != nil {
		return err
	}
	template.NotBefore, template.NotAfter = now.Add(-time.Minute), now.Add(certificateLifetime)
	template.KeyUsage = x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, template, ca, key.Public(), caKey)
	if err != nil {
		return err
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		return err
	}
	if err := os.WriteFile(c.file(name+".key"), keyPEM, 0o600); err != nil {
		return err
	}
	return os.WriteFile(c.file(name+".crt"), encodeCertificate(certificate), 0o600)
}

// valid tells whether there is a set of certificates that can be used again.
func (c standaloneCerts) valid(hosts []string) bool {
	ca, err := certutil.CertsFromFile(c.caFile())
	if err != nil || len(ca) == 0 {
		return false
	}
	roots := x509.NewCertPool()
	roots.AddCert(ca[0])
	for name, usage := range map[string]x509.ExtKeyUsage{"serving": x509.ExtKeyUsageServerAuth, "admin": x509.ExtKeyUsageClientAuth} {
		certs, err := certutil.CertsFromFile(c.file(name + ".crt"))
		if err != nil || len(certs) == 0 {
			return false
		}
		options := x509.VerifyOptions{Roots: roots, CurrentTime: time.Now().Add(certificateReserve), KeyUsages: []x509.ExtKeyUsage{usage}}
		if _, err := certs[0].Verify(options); err != nil {
			return false
		}
		if _, err := keyutil.PrivateKeyFromFile(c.file(name + ".key")); err != nil {
			return false
		}
		for _, host := range hosts {
			if usage == x509.ExtKeyUsageServerAuth && certs[0].VerifyHostname(host) != nil {
				return false
			}
		}
	}
	return true
}

func newKey() (*ecdsa.PrivateKey, []byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("make a key: %w", err)
	}
	pem, err := keyutil.MarshalPrivateKeyToPEM(key)
	if err != nil {
		return nil, nil, fmt.Errorf("encode a key: %w", err)
	}
	return key, pem, nil
}

func encodeCertificate(certificate *x509.Certificate) []byte {
	pem, err := certutil.EncodeCertificates(certificate)
	if err != nil {
		return nil // cannot happen: it only writes to memory
	}
	return pem
}

// writeKubeconfig writes a kubeconfig of the administrator for a server, in one
// step and readable by its owner only.
func (c standaloneCerts) writeKubeconfig(path, server string) error {
	var pem [3][]byte
	for i, name := range []string{"ca.crt", "admin.crt", "admin.key"} {
		var err error
		if pem[i], err = os.ReadFile(c.file(name)); err != nil {
			return fmt.Errorf("read the administrator's certificates: %w", err)
		}
	}
	config := clientcmdapi.NewConfig()
	config.Clusters["policy-apiserver"] = &clientcmdapi.Cluster{Server: server, CertificateAuthorityData: pem[0]}
	config.AuthInfos[adminUser] = &clientcmdapi.AuthInfo{ClientCertificateData: pem[1], ClientKeyData: pem[2]}
	config.Contexts["policy-apiserver"] = &clientcmdapi.Context{Cluster: "policy-apiserver", AuthInfo: adminUser}
	config.CurrentContext = "policy-apiserver"
	data, err := clientcmd.Write(*config)
	if err != nil {
		return fmt.Errorf("encode kubeconfig: %w", err)
	}
	temporary, err := os.CreateTemp(filepath.Dir(path), ".kubeconfig-*") // mode 0600
	if err != nil {
		return fmt.Errorf("write kubeconfig %s: %w", path, err)
	}
	_, err = temporary.Write(data)
	err = errors.Join(err, temporary.Close())
	if err == nil {
		err = os.Rename(temporary.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("write kubeconfig %s: %w", path, errors.Join(err, os.Remove(temporary.Name())))
	}
	return nil
}
